// SPDX-License-Identifier: Apache-2.0
// Parameters of every cast kernel: what a call passes (tilewright::CastArgs, byte for byte) and what prepare() fixed.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::cast {

struct Args {
  Operand x;         // [rows, cols]
  MutableOperand y;  // [rows, cols]; y.global is read, not written
  i64 rows;
  u64 seed;  // of stochastic rounding
};

struct Shape {
  i64 cols;
  i32 encoder;  // of the format of y
  i32 unused;
};

}  // namespace tw::cast
