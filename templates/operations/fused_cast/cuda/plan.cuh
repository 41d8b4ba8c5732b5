// SPDX-License-Identifier: Apache-2.0
// What a candidate of `rows` chooses, and how a row's elements lie in threads. Host and device read the same functions.
#pragma once
#include "operations/gemm/activation.cuh"

namespace tw::fused_cast {

struct Knobs {
  int row_threads = 128;  // that share a row, or a part of one: whole warps
  int block_rows = 1;     // of a block
  int held = 1;           // pieces of a thread that stay in registers
  bool ahead = false;     // blocks loop over rows, and read the next ones while they encode
  bool wide = false;      // pieces of 16 elements
  // These follow from the problem.
  int piece = 8;      // neighbouring elements of a thread: 8 or 16, or one
  bool whole = true;  // held pieces are all of a row
  bool residual = false, norm = false, gated = false;
  gemm::Act act = gemm::Act::none;

  TW_MEMBER constexpr int threads() const { return row_threads * block_rows; }
  TW_MEMBER constexpr int step() const { return row_threads * piece; }  // elements that a row's threads have at a time
  TW_MEMBER constexpr int span() const { return held * step(); }
};

TW_FN constexpr int whole_vectors(int bytes) { return (bytes + 15) / 16 * 16; }
// Whether lanes share a block of `block` elements without a scale of the row: then it goes through shared memory.
TW_FN constexpr bool shares_blocks(const Knobs& k, int block) { return block > k.piece; }
// Blocks of `block` elements that a warp encodes together.
TW_FN constexpr int warp_blocks(const Knobs& k, int block) { return 32 * k.piece / block; }
// Where a warp's encoded blocks wait for their way to memory: their data, then their scales.
TW_FN constexpr int staging_bytes(const Knobs& k, int block, int data_bytes, int scale_bytes) {
  return whole_vectors(warp_blocks(k, block) * data_bytes) + whole_vectors(warp_blocks(k, block) * scale_bytes);
}
// Words that a row's warps exchange: the sum of squares; then, for a scale of the row, its largest magnitude, or its
// extremes and the sum of its codes.
TW_FN constexpr int exchanged_words(const Knobs& k, bool row_scale, bool zero_point) {
  return (k.norm ? 1 : 0) + (row_scale ? zero_point ? 3 : 1 : 0);
}

}  // namespace tw::fused_cast
