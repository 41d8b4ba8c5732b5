// SPDX-License-Identifier: Apache-2.0
// What a candidate of gemv chooses, and what follows from it: how a block's threads are laid out and what lies in its
// shared memory. The kernel and the host read the same functions.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gemm {

struct GemvKnobs {
  int tokens = 1;    // rows of x per block; more blocks cover the rest
  int unit = 8;      // elements of w per thread and load: one thread's piece of a row
  int lanes = 32;    // of a warp, that share a row's k
  int warps_k = 1;   // that share a row's k
  int warps = 4;     // of a block
  int rows = 1;      // of w per thread, which share what is read of x
  int depth = 1;     // units in flight per row
  int staged_k = 0;  // elements of k that are in shared memory at a time
  int split_k = 1;   // blocks of a cluster that share a row's k

  TW_MEMBER constexpr int threads() const { return 32 * warps; }
  TW_MEMBER constexpr int threads_k() const { return lanes * warps_k; }
  TW_MEMBER constexpr int row_groups() const { return 32 / lanes * (warps / warps_k); }  // of threads, along n
  TW_MEMBER constexpr int block_rows() const { return row_groups() * rows; }
  TW_MEMBER constexpr int staged_units() const { return staged_k / unit; }
};

// What the plan depends on of the formats.
struct GemvOperands {
  int element_bytes;  // of x as it is staged: 1 for codes, 2 for FP8, which is widened once instead of for each row of
                      // w
  bool codes;         // x is signed bytes, with a scale per 32
  bool offsets;       // w has minima, which take sums of x's codes
};

// Shared memory of a block: rows of x, for codes their scales and sums, then partial sums of y.
struct GemvPlan {
  int unit_bytes;   // from one unit of a row of x to the next
  int x_bytes;      // of a row
  int unit_scales;  // floats from one unit's scales to the next
  int scales;       // floats of a row; as many sums of codes follow
  int sums;
  int partials;  // floats of a block
  int shared_bytes;
};
// Units are an odd number of 16-byte words apart, so that lanes, which sit a unit apart in k, read different banks.
TW_FN constexpr GemvPlan gemv_plan(const GemvKnobs& k, const GemvOperands& o) {
  GemvPlan p{};
  const int bytes = k.unit * o.element_bytes;
  p.unit_bytes = bytes >= 16 ? (bytes / 16 | 1) * 16 : bytes;
  p.x_bytes = (k.staged_units() * p.unit_bytes + 15) / 16 * 16;
  p.unit_scales = k.unit / 32 | 1;
  p.scales = o.codes ? k.staged_units() * p.unit_scales : 0;
  p.sums = o.offsets ? p.scales : 0;
  p.partials = k.warps_k > 1 || k.split_k > 1 ? k.tokens * k.block_rows() * k.warps_k : 0;
  p.shared_bytes = k.tokens * (p.x_bytes + 4 * (p.scales + p.sums)) + 4 * p.partials;
  return p;
}

}  // namespace tw::gemm
