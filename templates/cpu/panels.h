// SPDX-License-Identifier: Apache-2.0
// Weights in panels: 16 rows side by side, block of 32 columns behind block. A block has the codes of its rows, four
// columns of each row next to each other, and then the rows' scales:
//
//   q4_0   4 groups of 64 bytes: byte 4 r + j of group i has columns 4 i + j (low) and 4 i + j + 16 (high) of row r;
//          16 halves. 288 bytes
//   q8_0   8 groups of 64 bytes: byte 4 r + j of group i has column 4 i + j of row r, plus 128; 16 halves. 544 bytes
//
// Lossless, and of the size of w. kernels.h reads it.
#pragma once

#include <tilewright/format.h>
#include <tilewright/gemm.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tilewright::cpu {

inline constexpr int kPanel = 16;         // rows
inline constexpr int kPanelColumns = 32;  // of a block

struct PanelInfo {
  int bits, offset;  // of a code as it is stored: it stands for code - offset
  int bytes() const { return kPanel * (kPanelColumns * bits / 8 + 2); }  // of a block
};
const PanelInfo* panel_info(Format w);  // null if it has no panels

std::int64_t panel_bytes(const Gemm& g);  // of w, a stack of matrices if the problem has groups

// Throws Error for a w, x or n that panels are not for. `field`, `value`: what asked for them.
void check_panels(const char* field, std::string value, Format w, Format x, std::int64_t n);

// A whole w of a problem with pack=panels, and back.
void pack_panels(const Gemm& g, const void* w, void* panels);
void unpack_panels(const Gemm& g, const void* panels, void* w);
// Of a matrix of k columns, panels first to last - 1. w and panels are those of the whole matrix.
void pack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from, std::byte* to);
void unpack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                   std::byte* to);

}  // namespace tilewright::cpu
