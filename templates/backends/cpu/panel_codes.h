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
//   half, bf16   for each of `scales` parts of the columns 16 numbers, and as many of minima if the format has them
//   grouped      16 bytes for each part, which count in 16 halves that stand in front of eight blocks; behind the bytes
//                as many of minima, which count in 16 more halves, if the format has minima
//   front        none: 16 halves stand in front of `together` blocks, and behind them 16 of zero points (`minima`)
//   row          none: 16 floats stand in front of the panel
//   none         none at all: codes less their offset are the numbers
#pragma once

#include <cstdint>

namespace tilewright::cpu {

inline constexpr int kPanel = 16;         // rows
inline constexpr int kPanelColumns = 32;  // of a block

enum class PanelScale { half, bf16, grouped, front, row, none };

// Codes of four bits may name levels instead: bytes from 0 on, which stand for themselves less the offset.
struct PanelLevels {
  std::uint8_t of[16] = {};
  constexpr int largest() const {
    int largest = 0;
    for (const int level : of) largest = level > largest ? level : largest;
    return largest;
  }
  friend constexpr bool operator==(const PanelLevels&, const PanelLevels&) = default;
};
inline constexpr PanelLevels kE2m1Levels = {{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}};  // in halves

struct PanelCodes {
  int bits = 0;             // of a code: 4, 5, 6 or 8; 0: there are no panels
  int offset = 0;           // a code, or the level that it names, stands for itself less this
  PanelLevels levels = {};  // all 0: there are none
  int scales = 1;           // of a block: 1, or 2 of 16 columns each
  PanelScale scale = PanelScale::half;
  bool minima = false;  // are subtracted; in front, they are zero points times scales; offset is 0
  int together = 1;     // front: blocks that share scales
  int halvings = 0;     // grouped: scales count in so many halvings of what stands in front

  constexpr int code_bytes() const { return kPanel * kPanelColumns * bits / 8; }
  constexpr int bytes() const {  // of a block
    const int numbers = scales * (minima ? 2 : 1);
    return code_bytes() + kPanel * (scale == PanelScale::grouped                             ? numbers
                                    : scale == PanelScale::half || scale == PanelScale::bf16 ? 2 * numbers
                                                                                             : 0);
  }
  constexpr int blocks() const {  // of a group
    return scale == PanelScale::grouped ? 8 : scale == PanelScale::front ? together : 1;
  }
  constexpr int group_bytes() const {  // in front of its blocks
    return scale == PanelScale::grouped || scale == PanelScale::front ? 2 * kPanel * (minima ? 2 : 1) : 0;
  }
  constexpr bool exact() const { return scale == PanelScale::none; }  // sums of products are integers throughout
  constexpr int factors() const { return (exact() ? 0 : scales) + (minima ? scales : 0); }  // of a row of a block
  constexpr int head_bytes() const { return scale == PanelScale::row ? 4 * kPanel : 0; }    // in front of a panel
  // Whether native kernels have an instance for it. Formats of grids have none, so that the library compiles in less
  // time; without libLLVM the reference computes them.
  constexpr bool native() const { return bits > 0 && halvings == 0; }
  constexpr bool named() const { return levels.largest() > 0; }
  constexpr int largest() const { return named() ? levels.largest() : (1 << bits) - 1; }  // what is multiplied
  // Whether sums of two products with signed bytes may not fit in 16 bits.
  constexpr bool wide() const { return largest() > 127; }
  // Of a panel of so many columns.
  constexpr std::int64_t panel_bytes(std::int64_t k) const {
    return head_bytes() + k / kPanelColumns * bytes() + k / (kPanelColumns * blocks()) * group_bytes();
  }
  friend constexpr bool operator==(const PanelCodes&, const PanelCodes&) = default;
};

// Panels of floats: of f32 and f16 column behind column, those of the 16 rows; of bf16 pair of columns behind pair, a
// row's two side by side, as instructions for bf16 take them, and where k is odd a last column of zeros. In front of
// them are the scales of formats that have them: 16 floats for the panel (`row`), or for every kScaleColumns columns
// (`columns`), each row having its own although the format's may be of several.
enum class FloatScales { none, row, columns };
inline constexpr int kScaleColumns = 128;

struct PanelFloats {
  int bytes = 0;  // of a number: 4 or 2; 0: there are no such panels
  int step = 1;   // columns of a row that lie side by side
  FloatScales scales = FloatScales::none;

  constexpr std::int64_t columns(std::int64_t k) const { return (k + step - 1) / step * step; }
  constexpr std::int64_t head_bytes(std::int64_t k) const {
    return scales == FloatScales::none ? 0 : 4 * kPanel * (scales == FloatScales::row ? 1 : k / kScaleColumns);
  }
  constexpr std::int64_t panel_bytes(std::int64_t k) const { return head_bytes(k) + kPanel * bytes * columns(k); }
};

}  // namespace tilewright::cpu
