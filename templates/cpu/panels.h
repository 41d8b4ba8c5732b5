// SPDX-License-Identifier: Apache-2.0
// Weights in panels: 16 rows side by side, block of 32 columns behind block. PanelCodes describes what a block holds;
// packing, kernels (kernels.h) and legality read it. In a block, a vector of 64 bytes has four columns of each row: its
// byte 4 r + j is row r's. First come the codes:
//
//   4 bits   4 vectors: of vector i, column 4 i + j in the low bits and column 4 i + j + 16 in the high ones
//   5, 6     the same with the codes' low four bits. Then their upper ones: of 5 bits one vector whose bit g is that of
//            column 4 g + j; of 6 bits two vectors whose bits 2 p and 2 p + 1 are those of column 16 v + 4 p + j
//   8        8 vectors: of vector i, column 4 i + j
//
// and then scales (PanelScale), r's behind those of the rows before it:
//
//   half, bf16   for each of `scales` parts of the columns 16 numbers, and 16 halves of minima if the format has them
//   grouped      16 bytes for each part, which count in 16 halves that stand in front of eight blocks; behind the bytes
//                16 more of minima, which count in 16 more halves, if the format has minima
//   front        none: 16 halves stand in front of `together` blocks, and behind them 16 of zero points (`minima`)
//   row          none: 16 floats stand in front of the panel
//   none         none at all: codes less their offset are the numbers
//
// Of f32 and f16 a panel has, column behind column, those of its 16 rows. Of bf16 it has, pair of columns behind pair,
// a row's two side by side, as instructions for bf16 take them; where k is odd, a last column of zeros.
//
// Lossless. As large as w, but for FP4: scales there have two bytes, so that a kernel need not decode them. A scale of
// the whole tensor stays a stream of its own.
#pragma once

#include <tilewright/format.h>
#include <tilewright/gemm.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tilewright::cpu {

inline constexpr int kPanel = 16;         // rows
inline constexpr int kPanelColumns = 32;  // of a block

enum class PanelScale { half, bf16, grouped, front, row, none };

struct PanelCodes {
  int bits;    // of a code: 4, 5, 6 or 8
  int offset;  // a code stands for code - offset
  bool e2m1;   // 4 bits are E2M1 of half a unit: what stands for the number is 12 + it
  int scales;  // of a block: 1, or 2 of 16 columns each
  PanelScale scale;
  bool minima;       // are subtracted; in front, they are zero points times scales; offset is 0
  int together = 1;  // front: blocks that share scales

  constexpr int code_bytes() const { return kPanel * kPanelColumns * bits / 8; }
  constexpr int bytes() const {  // of a block
    return code_bytes() + kPanel * (scale == PanelScale::grouped ? scales + (minima ? 1 : 0)
                                    : scale == PanelScale::half || scale == PanelScale::bf16
                                        ? 2 * (scales + (minima ? 1 : 0))
                                        : 0);
  }
  constexpr int blocks() const {  // of a group
    return scale == PanelScale::grouped ? 8 : scale == PanelScale::front ? together : 1;
  }
  constexpr int group_bytes() const {  // in front of its blocks
    return scale == PanelScale::grouped || scale == PanelScale::front ? 2 * kPanel * (minima ? 2 : 1) : 0;
  }
  constexpr bool exact() const { return scale == PanelScale::none; }  // sums of products are integers throughout
  constexpr int factors() const { return (exact() ? 0 : scales) + (minima ? 1 : 0); }     // of a row of a block
  constexpr int head_bytes() const { return scale == PanelScale::row ? 4 * kPanel : 0; }  // in front of a panel
  constexpr int largest() const { return e2m1 ? 24 : (1 << bits) - 1; }                   // what is multiplied
  // Of a panel of so many columns.
  constexpr std::int64_t panel_bytes(std::int64_t k) const {
    return head_bytes() + k / kPanelColumns * bytes() + k / (kPanelColumns * blocks()) * group_bytes();
  }
  friend constexpr bool operator==(const PanelCodes&, const PanelCodes&) = default;
};
// Of all formats that have panels. Formats that differ only in where they keep their bytes share a row.
inline constexpr PanelCodes kPanelCodes[] = {
    {4, 12, true, 1, PanelScale::bf16, false},      // ggml_mxfp4, mxfp4
    {4, 12, true, 2, PanelScale::half, false},      // ggml_nvfp4, nvfp4
    {4, 8, false, 1, PanelScale::half, false},      // q4_0, int4_g32
    {4, 0, false, 1, PanelScale::half, true},       // q4_1
    {5, 16, false, 1, PanelScale::half, false},     // q5_0
    {5, 0, false, 1, PanelScale::half, true},       // q5_1
    {4, 0, false, 1, PanelScale::grouped, true},    // q4_k
    {5, 0, false, 1, PanelScale::grouped, true},    // q5_k
    {6, 32, false, 2, PanelScale::grouped, false},  // q6_k
    {8, 128, false, 1, PanelScale::half, false},    // q8_0
    {4, 8, false, 1, PanelScale::front, false, 2},  // int4_g64
    {4, 8, false, 1, PanelScale::front, false, 4},  // int4_g128
    {4, 8, false, 1, PanelScale::row, false},       // int4_row
    {8, 128, false, 1, PanelScale::row, false},     // int8_row
    {4, 0, false, 1, PanelScale::front, true, 1},   // uint4_g32
    {4, 0, false, 1, PanelScale::front, true, 2},   // uint4_g64
    {4, 0, false, 1, PanelScale::front, true, 4},   // uint4_g128
    {8, 128, false, 1, PanelScale::none, false},    // int8
};
const PanelCodes* panel_codes(Format w);  // null if it has no panels, or panels of floats

std::int64_t panel_bytes(Format w, std::int64_t k);  // of one panel
std::int64_t panel_bytes(const Gemm& g);             // of w; of a stack, of one of its matrices

bool have_panels(Format w, Format x, std::int64_t n, std::int64_t k);  // whether check_panels() is content

// Throws Error for a w, x, n or k that panels are not for. `field`, `value`: what asked for them.
// `n_field`: what has n.
void check_panels(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k,
                  const char* n_field = "n");

// A whole w of a problem with pack=panels, and back; but for its tensor-wide scale.
void pack_panels(const Gemm& g, Operand w, void* panels);
void unpack_panels(const Gemm& g, const void* panels, MutableOperand w);
// Of a matrix of k columns, panels first to last - 1. w and panels are those of the whole matrix.
void pack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, Operand from, std::byte* to);
void unpack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                   MutableOperand to);

}  // namespace tilewright::cpu
