// SPDX-License-Identifier: Apache-2.0
// What the CPU has of the operation gemm. Stateless, usable from any thread.
#pragma once

#include <tilewright/family.h>
#include <tilewright/gemm.h>
#include <tilewright/source.h>

#include <optional>
#include <span>
#include <string>

#include "templates/operations/gemm/cpu/options.h"
#include "templates/operations/gemm/cpu/panels.h"

namespace tilewright::cpu {

std::span<const Family* const> gemm_families();  // the fastest kinds first

// The problem with w in panels, if it is not packed yet and kernels of this CPU take it so.
std::optional<Problem> packed(const Gemm& g, const Arch& arch);

const Family& gemv();        // few tokens, whose sums stay in registers
const Family& codes();       // many tokens
const Family& tiles();       // many tokens, on CPUs with AMX
const Family& floats();      // x and w of f32, f16 and bf16
const Family& bf16_tiles();  // x and w of bf16, on CPUs with AMX
const Family& reference();   // any pair of formats, and the oracle

// ---- what the families with kernels share

std::optional<Type> float_type(Format f);   // f32, f16 or bf16
std::optional<Type> output_type(Format f);  // of y: one of these, int8, e4m3, e5m2 or int32
Epilogue epilogue_of(const Gemm& g);
std::string without_vectors(const Arch& arch);  // why it has no kernels
// Why no kernel computes g, whatever x and w are; empty if some may.
std::string refusal(const Gemm& g, const Arch& arch);

}  // namespace tilewright::cpu
