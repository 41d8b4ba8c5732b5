// SPDX-License-Identifier: Apache-2.0
// Threads that share a row, `row_threads` of them (whole warps), `block_rows` rows side by side in a block. Where a row
// has several warps they meet in shared memory; each of a kernel's reductions has words of its own there, so that one
// barrier is enough for each. All threads of the block have to come.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::cast {

template <int row_threads, int block_rows>
struct RowGroup {
  TW_CONSTANTS(int, kWarps = row_threads / 32);  // of a row
  static_assert(row_threads % 32 == 0, "whole warps");
  TW_MEMBER static constexpr int shared_bytes(int words) { return kWarps > 1 ? block_rows * kWarps * 4 * words : 0; }

  template <class V>
  TW_MEMBER static V* of_warps(int word, int row) {
    return reinterpret_cast<V*>(dynamic_shared()) + (word * block_rows + row) * kWarps;
  }
  // Over the threads of a row; every thread gets it. From word `word` on.
  template <class Extent>
  TW_MEMBER static void join(Extent& extent, int word, int row, int thread) {
    TW_UNROLL for (int e = 0; e < Extent::kFloats; ++e) TW_UNROLL for (int d = 16; d > 0; d /= 2) extent.of[e] =
        max_number(extent.of[e], shuffle_xor(extent.of[e], d));
    if constexpr (kWarps > 1) {
      TW_UNROLL for (int e = 0; e < Extent::kFloats; ++e) if (thread % 32 == 0)
          of_warps<float>(word + e, row)[thread / 32] = extent.of[e];
      sync_block();
      TW_UNROLL for (int e = 0; e < Extent::kFloats; ++e) TW_UNROLL for (int i = 0; i < kWarps; ++i) extent.of[e] =
          max_number(extent.of[e], of_warps<float>(word + e, row)[i]);
    }
  }
  // In a fixed order, so that every run gives the same bits.
  template <class V>
  TW_MEMBER static V sum(V v, int word, int row, int thread) {
    v = sum_lanes<32>(v);
    if constexpr (kWarps > 1) {
      V* const warps = of_warps<V>(word, row);
      if (thread % 32 == 0) warps[thread / 32] = v;
      sync_block();
      v = 0;
      TW_UNROLL for (int i = 0; i < kWarps; ++i) v += warps[i];
    }
    return v;
  }
};

}  // namespace tw::cast
