// SPDX-License-Identifier: Apache-2.0
// Parameters of GPTQ's kernels: what a launch does (tilewright::GptqArgs, byte for byte) and where the layer lies
// (tilewright::GptqLayer). include/tilewright/gptq.h documents both.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gptq {

TW_CONSTANTS(int, kTile = 64, kTileSize = kTile * kTile, kThreads = 128, kSharedBytes = 33280);

enum class Step : i32 { gather, energy, arrange, subtract, diagonal, solve, transpose, choose, add, round, store };

struct Args {
  Step step;
  i32 plain;
  i64 first, count, from, end;
  double added;
};

struct Shape {
  i64 n, k, group;
  i32 static_groups, encoder;
  double mean, least_pivot;
  float* source;
  const double* h;
  double* r;
  double* least;
  u32* failed;
  const i32* order;
  const i32* slots;
  const i32* places;
  float* w;
  double* sums;
  double* corrections;
  u32* items;
  u8* codes;
  double* errors;
  u32* bad_group;
  float* bad_range;
  u8* data;

  TW_MEMBER i64 tiles() const { return ceil_div64(k, kTile); }
  TW_MEMBER i64 rows() const { return ceil_div64(n, kTile) * kTile; }
  TW_MEMBER i64 groups() const { return ceil_div64(k, group); }
  // Of the upper triangle's tile (i, j), i <= j.
  TW_MEMBER static i64 triangle(i64 i, i64 j) { return (j * (j + 1) / 2 + i) * kTileSize; }
  // Of the tile of 64 columns by 64 rows of w, sums and codes.
  TW_MEMBER i64 strip(i64 strip, i64 tile) const { return (strip * tiles() + tile) * kTileSize; }
};

}  // namespace tw::gptq
