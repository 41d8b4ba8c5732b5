// SPDX-License-Identifier: Apache-2.0
// What a format file says of its fast path (formats/shared/format.cuh), for the host's legality rules.
#pragma once

#include <tilewright/format.h>

#include "backends/cuda/types.cuh"

namespace tilewright {

// The type of a format's elements where each is stored by itself, whatever scales there are beside.
enum class Element { none, f32, f16, bf16, e4m3, e5m2, i8, i32 };
inline bool is_fp8(Element e) { return e == Element::e4m3 || e == Element::e5m2; }

struct FastPath {
  Element element;
  int element_bytes;  // of such an element; 0: there are none
  int row_bytes;      // of what `scales` holds of a row; 0: nothing
  bool zero_point;    // as well as a scale
  bool signs;         // elements are a scale and its negative, a bit each
  bool row_mean;      // the scale is made from the row's mean magnitude
  int group;          // elements under one scale; 0: no units of one thread
  bool codes, offset;
  double table_f16, table_bf16;  // codes of a table: relative errors of its entries as floats of 16 bits; 0: no table
  bool code_lanes;               // a GEMM kernel may encode x itself
  int bits;                      // of a code
  bool global;
  tw::ScaledMma scaled;  // the matrix instruction that takes it as stored
  bool (*unit_ok)(int elements);
  int (*unit_bytes)(int elements);  // of the data stream
  int block, data_bytes, scale_bytes;
  int scale_rows;                  // that share a scale
  int (*raw_bytes)(int elements);  // codes: of the data of 64 or 128 elements copied as stored

  bool table() const { return table_bf16 > 0; }
  bool coded() const { return codes || table(); }  // has to be unpacked
};

const FastPath& fast_path(Format f);

// Whether a matrix instruction takes both as they are stored, and applies their scales.
inline bool scaled(const FastPath& x, const FastPath& w) {
  return x.scaled == w.scaled && x.scaled != tw::ScaledMma::none;
}

// What kernels may round off weights that nothing packed, relatively: entries of a table, which matrix units take as
// elements of x.
inline double table_rounding(const FastPath& x, const FastPath& w) {
  return x.element == Element::f16 ? w.table_f16 : x.element == Element::bf16 ? w.table_bf16 : 0;
}

inline constexpr int kTileRows = 64;
inline constexpr int kMostBytes = 131071;   // products of -128 and -128 that a 32-bit sum holds
inline constexpr int kMostCentred = 33025;  // and of 255 and 255, bytes less their zero points

// What a format's tiles for an x are like (formats/shared/tiles.cuh).
struct TileInfo {
  Element element;           // of x as it is multiplied; none: of blocks of codes
  int panel_k;               // columns of a tile
  int bits, words;           // of a stored code; of codes per thread and tile
  int scale_k, scale_bytes;  // columns per chunk of scales, bytes per row of one; 0: no such stream
  double rounding;           // of an unpacked weight, relative
  bool offset;               // weights are code * step + offset, and either part may be rounded
  // Two panels may be unpacked to E4M3, for x of that: the largest errors, relative to a weight, and besides in units
  // of the tensor's scale. 0, 0: they may not.
  double narrow_rounding, narrow_least;
};

// Null: w has none for x.
const TileInfo* tile_info(Format w, Format x);
// Whether x, of E4M3, may be multiplied as it is by weights that are rounded to it.
inline bool may_narrow(const TileInfo& tiles, Format x) {
  return tiles.narrow_rounding > 0 && fast_path(x).element == Element::e4m3;
}

}  // namespace tilewright
