// SPDX-License-Identifier: Apache-2.0
// What the ways to multiply share: a thread's place among the math warpgroups, and stages as matrix descriptors.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/gemm/cuda/wgmma/plan.cuh"

namespace tw::gemm {

struct MathThread {
  int thread, lane;
  int group, group_k;  // its warpgroup's place along n, and along k
};

// Descriptors count in units of 16 bytes. uniform() keeps the descriptor out of every thread's registers, from which it
// would be moved one by one; where tokens are many, the compiler finds that out itself.
template <class T>
TW_DEVICE u32 stage_descriptor(u32 ring, const typename T::Ring& at) {
  const int stage = static_cast<int>(ring) + at.stage * (T::kStageBytes / 16);
  return static_cast<u32>(T::kSmallTile ? uniform(stage) : stage);
}

}  // namespace tw::gemm
