// SPDX-License-Identifier: Apache-2.0
// What a candidate of `vectors` chooses. Host and device read the same functions.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::amax {

struct Knobs {
  int threads = 256;
  int loads = 4;  // of 16 bytes that a thread has in flight

  TW_MEMBER constexpr int tile() const { return threads * loads; }  // accesses of a block at a time
};

}  // namespace tw::amax
