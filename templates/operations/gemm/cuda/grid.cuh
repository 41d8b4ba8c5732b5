// SPDX-License-Identifier: Apache-2.0
// Where a block of a launch works. Blocks are numbered along x alone, because a grid has at most 65535 of them along y
// and z: first those that read all of w for the first rows of x, then the same for the next rows.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gemm {

// First rows of x and of w.
struct GridPlace {
  i64 m, n;
};
// Blocks take block_m rows of x and block_n rows of w. Few rows of x, which are in a hurry, need no division.
template <int block_m, int block_n>
TW_FN GridPlace grid_place(u32 block, i64 m, i64 n) {
  u32 along_m = 0;
  if (m > block_m) {
    const u32 blocks_n = static_cast<u32>(ceil_div64(n, block_n));
    along_m = block / blocks_n;
    block -= along_m * blocks_n;
  }
  return {static_cast<i64>(along_m) * block_m, static_cast<i64>(block) * block_n};
}

}  // namespace tw::gemm
