// SPDX-License-Identifier: Apache-2.0
// Packing of weights in panels. panel_codes.h says what panels hold, a format's file (formats/NAME.h) which its own
// are.
//
// Lossless. As large as w, but for FP4, whose scales have two bytes there, so that a kernel need not decode them, and
// for FP8, which is twice as large. A scale of the whole tensor stays a stream of its own.
#pragma once

#include <tilewright/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "templates/backends/cpu/panel_codes.h"

namespace tilewright::cpu {

const PanelCodes* panel_codes(Format w);    // null if it has no panels, or panels of floats
const PanelFloats* panel_floats(Format w);  // null if it has no panels, or panels of codes

std::int64_t panel_bytes(Format w, std::int64_t k);  // of one panel

bool have_panels(Format w, Format x, std::int64_t n, std::int64_t k);  // whether check_panels() is content

// Throws Error for a w, x, n or k that panels are not for. `field`, `value`: what asked for them.
// `n_field`: what has n.
void check_panels(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k,
                  const char* n_field = "n");

// Of a matrix of k columns, but for its tensor-wide scale, panels first to last - 1. w and panels are those of the
// whole matrix.
void pack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, Operand from, std::byte* to);
void unpack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                   MutableOperand to);

}  // namespace tilewright::cpu
