// SPDX-License-Identifier: Apache-2.0
// Parameters of every gemm kernel: what a call passes (tilewright::GemmArgs, byte for byte) and what prepare() fixed.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gemm {

struct Args {
  Operand x;         // [m, k]
  Operand w;         // [n, k]
  void* y;           // [m, n]
  const void* bias;  // [n]
  i64 m;
  i64 ldx, ldy;             // elements; 0: dense
  const void* c = nullptr;  // [m, n]
  i64 ldc = 0;
  void* workspace = nullptr;
  float alpha = 1, beta = 1;  // times those of Shape
  const i32* group_rows = nullptr;
};

struct Shape {
  i64 n, k;
  float alpha;
  i32 global_divides;        // the tensor-wide scales divide instead of multiplying
  i32 fast = 0;              // fp8 sums may be the matrix units' alone: of use to the oracle only
  float beta = 1;            // of c
  float y_factor = 1;        // 1 / y_scale
  i32 constant_weights = 0;  // w may be read before the kernels in front of this one are complete
  i64 workspace = 0;         // bytes
  // Of a grouped gemm (operations/gemm/cuda/groups.cuh):
  i32 groups = 0;
  i32 masked = 0;                          // each group has m rows in memory
  i64 w_rows = 0;                          // of all groups
  i64 w_data_step = 0, w_scales_step = 0;  // bytes from a group's w to the next
};

}  // namespace tw::gemm
