// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the emulator's sm_90a.
#pragma once

#include "backends/cuda/sm90.cuh"
#include "emulator/emulator_test.h"

namespace emulator_test {

inline u64* barrier_at(u32 offset) { return reinterpret_cast<u64*>(dynamic_shared() + offset); }

// One thread makes the barrier at `offset`, for all.
inline u64* shared_barrier(u32 offset, u32 arrivals) {
  u64* b = barrier_at(offset);
  if (thread_x() == 0) {
    barrier_init(b, arrivals);
    barrier_init_fence();
  }
  sync_cluster();
  return b;
}

}  // namespace emulator_test
