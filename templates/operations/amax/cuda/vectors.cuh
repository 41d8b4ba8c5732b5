// SPDX-License-Identifier: Apache-2.0
// The tensor as one run of elements, read by accesses of 16 bytes. Blocks take tiles in turns. Each adds its largest
// magnitude to a word of the workspace; the last one to end finds there that of all, and clears it. A maximum has the
// same bits in any order.
#pragma once
#include "backends/cuda/atomic.cuh"
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "operations/amax/cuda/plan.cuh"
#include "operations/amax/params.cuh"

namespace tw::amax {

template <class X, const Knobs& knobs>
struct Vectors {
  using T = typename X::Element;
  TW_CONSTANTS(int, kThreads = knobs.threads, kLoads = knobs.loads, kTile = knobs.tile(), kSharedBytes = 0);
  TW_CONSTANTS(int, kElements = 16 / static_cast<int>(sizeof(T)));  // of an access
  static_assert(sizeof(T) == 4 || sizeof(T) == 2, "floats");
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "whole warps");

  // The largest magnitude as bits of T, of all words so far and of this one.
  TW_MEMBER static void take(u32& most, u32 word) {
    if constexpr (sizeof(T) == 4) {
      most = max2(most, word & 0x7fffffffu);
    } else {
      most = max2(max2(most, word & 0x7fffu), word >> 16 & 0x7fffu);
    }
  }
  TW_MEMBER static u32 as_single(u32 most) {
    if constexpr (sizeof(T) == 4)
      return most;
    else
      return magnitude_bits(to_f32(bits_as<T>(static_cast<u16>(most))));
  }

  TW_MEMBER static u32 of_block(const u8* x, i64 count) {
    const i64 vectors = count / kElements;
    const int thread = static_cast<int>(thread_x());
    u32 most = 0;
    TW_NO_UNROLL for (i64 tile = static_cast<i64>(block_x()) * kTile; tile < vectors;
                      tile += static_cast<i64>(grid_x()) * kTile) {
      u32x4 v[kLoads];
      TW_UNROLL for (int i = 0; i < kLoads; ++i) {
        const i64 at = tile + i * kThreads + thread;
        v[i] = {0, 0, 0, 0};
        if (at < vectors) v[i] = load_stream16(x + at * 16);
      }
      TW_UNROLL for (int i = 0; i < kLoads; ++i) {
        take(most, v[i].x), take(most, v[i].y), take(most, v[i].z), take(most, v[i].w);
      }
    }
    // What is left of the run, fewer elements than an access has.
    if (block_x() == 0 && thread < count - vectors * kElements) {
      const u8* const p = x + (vectors * kElements + thread) * static_cast<i64>(sizeof(T));
      if constexpr (sizeof(T) == 4)
        take(most, load_global4(p));
      else
        take(most, load_global2(p));
    }
    return as_single(most);
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const int thread = static_cast<int>(thread_x());
    u32 most = of_block(static_cast<const u8*>(args.x), args.rows * shape.cols);
    TW_UNROLL for (int mask = 16; mask > 0; mask /= 2) most = max2(most, shuffle_xor(most, mask));
    // Every warp's leader has its warp's; a word of the workspace takes them all.
    if (thread % 32 == 0 && most > 0) max_global(args.workspace, most);
    if (ends_last(args.workspace + 1)) *args.amax = from_magnitude_bits(exchange_global(args.workspace, 0));
  }
};

}  // namespace tw::amax
