// SPDX-License-Identifier: Apache-2.0
// x for the kernels of gemm: rows are output pixels, and their columns the taps of the kernel with the channels of
// each, gathered from where they lie. A thread keeps the origins of its pixels and the tap of its columns and moves on
// from stage to stage, without a division for an element.
//
// Channels are the innermost axis, of one group, and whole pieces of E.
#pragma once
#include "conv/params.cuh"
#include "gemm/mma/staging.cuh"

namespace tw::conv {

struct GatherSource {
  const Args& args;
  const Shape& shape;
};

template <class T, int ROWS, int BK, int E, int THREADS, bool ASYNC>
struct GatheredTile : gemm::PlainTile<T, ROWS, BK, E, THREADS> {
  using Base = gemm::PlainTile<T, ROWS, BK, E, THREADS>;
  TW_CONSTANTS(int, kPieces = Base::kPieces, kEach = Base::kEach, kRowBytes = Base::kRowBytes,
               kStep = THREADS / kPieces, kBytes = E * static_cast<int>(sizeof(T)));
  static_assert(THREADS % kPieces == 0, "a thread's pieces are below each other");

  // Of each of its pixels: the image, and the first tap's place on the axes. Images beyond the last have none.
  i32 image[kEach], origin[kEach][3];
  i32 channel, tap[3];  // of its columns in the next stage

  // For a tile from pixel row0 on, and columns from k0 on.
  TW_MEMBER void start(const GatherSource& s, i64 row0, i64 k0) {
    const Axis* axes = s.shape.axes;
    const i64 pixels = s.shape.pixels();
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int row = static_cast<int>(thread_x()) / kPieces + i * kStep;
      const i64 m = row0 + row;
      const bool exists = row < ROWS && m < s.shape.n * pixels;
      image[i] = exists ? static_cast<i32>(m / pixels) : -1;
      i64 rest = exists ? m % pixels : 0;
      TW_UNROLL for (int a = 2; a >= 0; --a) {
        origin[i][a] = static_cast<i32>(rest % axes[a].out * axes[a].stride - axes[a].lo);
        rest /= axes[a].out;
      }
    }
    const i64 k = k0 + static_cast<int>(thread_x()) % kPieces * E;
    channel = static_cast<i32>(k % s.shape.c);
    i64 rest = k / s.shape.c;
    tap[2] = static_cast<i32>(rest % axes[2].kernel), rest /= axes[2].kernel;
    tap[1] = static_cast<i32>(rest % axes[1].kernel), tap[0] = static_cast<i32>(rest / axes[1].kernel);
  }

  // Stages come one behind the other.
  TW_MEMBER void fetch(const GatherSource& s, i64, i64, u8* tile) {
    const Axis* axes = s.shape.axes;
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      if (ROWS * kPieces % THREADS != 0 && t >= ROWS * kPieces) break;
      i32 at[3];
      TW_UNROLL for (int a = 0; a < 3; ++a) at[a] = place_on(axes[a], origin[i][a] + tap[a] * axes[a].dilation);
      const bool inside = image[i] >= 0 && tap[0] < axes[0].kernel && at[0] >= 0 && at[1] >= 0 && at[2] >= 0;
      const u8* from = static_cast<const u8*>(s.args.x.data);
      if (inside) {
        const Source source = source_at(s.shape, at[0], at[1], at[2]);
        if (source.cached) from = static_cast<const u8*>(s.args.cache);
        from += ((image[i] * source.pixels + source.pixel) * s.shape.c + channel) * static_cast<i64>(sizeof(T));
      }
      if constexpr (ASYNC) {
        const int byte = t % kPieces * kBytes;
        cp_async<kBytes>(tile + swizzled<kRowBytes>(t / kPieces, byte / 16) + byte % 16, from, inside ? kBytes : 0);
      } else {
        this->unit[i] = {};
        if (inside) Base::F::template load<E>(this->unit[i], from, nullptr, 0);
      }
    }
    channel += BK;
    TW_NO_UNROLL while (channel >= s.shape.c) {
      channel -= s.shape.c;
      if (++tap[2] < axes[2].kernel) continue;
      tap[2] = 0;
      if (++tap[1] < axes[1].kernel) continue;
      tap[1] = 0, ++tap[0];
    }
  }
  TW_MEMBER void place(u8* tile) {
    if constexpr (!ASYNC) Base::place(tile);
  }
};

// Input of gemm::Mma.
struct Gathered {
  using Source = GatherSource;
  template <class T, int ROWS, int BK, int E, int THREADS, bool ASYNC>
  using Tile = GatheredTile<T, ROWS, BK, E, THREADS, ASYNC>;
};

}  // namespace tw::conv
