// SPDX-License-Identifier: Apache-2.0
// The kernel families of the operation gemm, and its launch contract.
#pragma once

#include <tilewright/family.h>
#include <tilewright/kernel.h>

namespace tilewright::gemm {

const Family& wgmma();        // Hopper's warpgroup matrix units; coded weights as tiles
const Family& wgmma_codes();  // the same, codes by codes with exact sums of groups
const Family& mma();          // matrix units through mma.sync, sm_75 and up
const Family& gemv();         // few rows: bandwidth first
const Family& reference();    // any pair of formats

Contract contract(const Gemm& gemm);

// Why no kernel that reads w as its format stores it serves the problem; empty if some may.
std::string not_plain(const Problem& problem);

// Up to here tokens are few on Hopper: one tile has them all, small enough for several blocks per multiprocessor. Codes
// by codes are wgmma's then, and wgmma_codes' with more.
inline constexpr int kFewTokens = 64;

// Codes by codes on Hopper. x's blocks are of kGroup signed bytes, and its rows whole pieces for the copy engine, as
// which kPieceK columns of them lie in shared memory as they are stored.
inline constexpr int kGroup = 32, kPieceK = 128;
bool blocks_of_bytes(Format x);
TensorMapPlan blocks_map(Format x, int rows, int pieces);

// Of blocks whose scales the matrix instruction can apply itself, x and w of one kind: columns that a word of scales is
// for, which k and the distance of rows are whole; 0: they are no such.
int scaled_unit(const Gemm& g);

// Why 32-bit sums of these bytes are not enough, or not possible; empty if they are, or are not needed.
std::string no_sums(const Gemm& g);
// Why a kernel that reads x as its format stores it does not serve the problem; empty if it may.
std::string x_comes_as_floats(const Gemm& g);
// Why x in blocks of codes has no sums that minima of w would take; empty if it has, or there are none.
std::string no_sums_of_group(const Gemm& g);

// "tw::fmt::q4_0", "formats/q4_0.cuh"
std::string format_type(Format f);
std::string x_type(const Gemm& g);  // what a kernel that may quantize x takes it as
std::string format_file(Format f);
// Template arguments and includes that every gemm kernel needs.
std::string epilogue_type(const Gemm& g);
std::vector<std::string> includes_for(const Gemm& g, const char* kernel);

}  // namespace tilewright::gemm
