// SPDX-License-Identifier: Apache-2.0
// Parameters of every fused_cast kernel: what a call passes (tilewright::FusedCastArgs, byte for byte) and what
// prepare() fixed.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::fused_cast {

struct Args {
  const void* x;     // [rows, cols], or [rows, 2 cols]
  MutableOperand y;  // [rows, cols]; y.global is read, not written
  const void* bias;
  const void* weight;
  const void* residual;  // [rows, cols]
  void* residual_out;    // likewise; may be `residual`
  i64 rows;
};

struct Shape {
  i64 cols;
  i32 encoder;  // of the format of y
  float eps;
};

}  // namespace tw::fused_cast
