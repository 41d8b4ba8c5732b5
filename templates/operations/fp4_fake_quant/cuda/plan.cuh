// SPDX-License-Identifier: Apache-2.0
// What a candidate of `blocks` chooses, and how a block's elements lie in lanes. Host and device read the same
// functions.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::fp4_fake_quant {

struct Knobs {
  int threads = 256;
  int passes = 1;  // blocks of elements for each lane
  // These follow from the problem.
  int block = 16;       // elements that share a scale
  int piece = 4;        // elements of x of one access: 16 bytes of them, or one
  bool ragged = false;  // rows are not whole blocks

  TW_MEMBER constexpr int lanes() const { return block < 32 * piece ? block / piece : 32; }  // that share a block
  TW_MEMBER constexpr int elements() const { return block / lanes(); }                       // of a lane and block
  TW_MEMBER constexpr int groups() const { return threads / lanes(); }                       // blocks of a pass
  TW_MEMBER constexpr int tile() const { return groups() * passes; }                         // blocks of a thread block
};

}  // namespace tw::fp4_fake_quant
