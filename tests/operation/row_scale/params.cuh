// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::row_scale {

struct Args {
  const void* x;
  const float* scales;
  void* y;
  i64 rows;
};

struct Shape {
  i64 cols;
  float factor;
};

}  // namespace tw::row_scale
