// SPDX-License-Identifier: Apache-2.0
// What a candidate of `vectors` chooses. Host and device read the same functions.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::fake_quant {

struct Knobs {
  int threads = 256;
  int loads = 4;  // pieces that a thread has in flight
  // These follow from the problem.
  int piece = 4;        // elements of one access: 16 bytes of them, or one
  bool by_row = false;  // each row has a scale
  bool learned = false;

  TW_MEMBER constexpr int tile() const { return threads * loads; }  // pieces of a block at a time
};

// Blocks whose sums a workspace holds.
TW_FN constexpr u32 most_blocks() { return 4096; }

}  // namespace tw::fake_quant
