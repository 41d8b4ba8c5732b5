// SPDX-License-Identifier: Apache-2.0
// Parameters of every fp4_fake_quant kernel: what a call passes (tilewright::Fp4FakeQuantArgs, byte for byte) and what
// prepare() fixed.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::fp4_fake_quant {

struct Args {
  const void* x;  // [rows, cols]
  void* y;        // [rows, cols]
  const float* amax;
  i64 rows;
};

struct Shape {
  i64 cols;
};

// The elements of one block; the last one of a row may be short.
struct Span {
  i64 first;
  int count;
};
TW_FN i64 blocks_per_row(i64 cols, int block) { return ceil_div64(cols, block); }
// Block `index` of a row.
TW_FN Span span_of(i64 row, i64 index, i64 cols, int block) {
  const i64 col = index * block, left = cols - col;
  return {row * cols + col, left < block ? static_cast<int>(left) : block};
}

}  // namespace tw::fp4_fake_quant
