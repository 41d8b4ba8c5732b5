// SPDX-License-Identifier: Apache-2.0
// Parameters of the pack kernels: what a call passes (tilewright::PackArgs, byte for byte) and what prepare() fixed.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::pack {

struct Args {
  MutableOperand w;      // [n, k], as its format says
  MutableOperand tiles;  // the same matrix in tiles
};

struct Shape {
  i64 n, k;
};

}  // namespace tw::pack
