// SPDX-License-Identifier: Apache-2.0
// A whole tile: through the epilogue, transposed in staging memory, to y in pieces of sixteen bytes.
#pragma once
#include "operations/gemm/cuda/wgmma/store/items.cuh"
#include "operations/gemm/cuda/wgmma/store/last_wave.cuh"
#include "operations/gemm/cuda/wgmma/store/rows.cuh"

namespace tw::gemm {

template <class T>
struct StoreTile {
  using Epi = typename T::Epi;
  using Sum = typename T::Sum;
  using Sums = typename T::Sums;
  TW_CONSTANTS(int, kColumns = T::kColumns, kStrips = T::kStrips);
  using Items = TileItems<T>;
  using Column = typename Items::Column;

  using Chunks = TileStaging<Epi, kColumns>;
  TW_CONSTANTS(int, kChunks = kColumns / Chunks::kTokens);  // of a strip

  // Chunk i's buffer in this warpgroup's staging memory.
  TW_MEMBER static u8* buffer(u8* staging, int i) {
    return staging + (T::kAsyncStore ? i * Chunks::Result::kBytes : i % 2 * Chunks::kBuffer);
  }
  // Fetches chunk i's c. The buffer is free: its last reader has passed a barrier since.
  TW_MEMBER static void fetch_c(const Args& args, const Shape& shape, u8* staging, i64 n0, i64 m0, int i, int thread) {
    if constexpr (Epi::kC) {
      using Addend = typename Chunks::Addend;
      u8* const to = buffer(staging, i) + Chunks::kAddendAt;
      const i64 ldc = args.ldc ? args.ldc : shape.n, row = n0 + (thread / 128 * kStrips + i / kChunks) * kStripRows;
      const int token = i % kChunks * Chunks::kTokens;
      if constexpr (T::kGathers)
        Addend::fetch_from(to, args.c, ldc, typename T::XRows::Tile(shape, m0), token, row, shape.n, thread);
      else
        Addend::fetch(to, args.c, ldc, m0 + token, row, args.m, shape.n, thread);
    }
  }
  // The first chunk's c is fetched before the products, which hide its latency.
  TW_MEMBER static void prepare(const Args& args, const Shape& shape, u8* staging, i64 n0, i64 m0, int thread) {
    fetch_c(args, shape, staging, n0, m0, 0, opaque(thread));
  }
  // The tile's row n0 and token m0 are the first that were multiplied, first_n and first_m the first that are stored.
  TW_MEMBER static void store_tile(const Args& args, const Shape& shape, u8* staging, const Column* x_items,
                                   const typename Items::RowItems& scale, const Sums& sums, const u32* others, i64 n0,
                                   i64 m0, i64 first_n, i64 first_m, int thread) {
    thread = opaque(thread);
    constexpr int kTokens = Chunks::kTokens, kBlocks = Chunks::kBlocks;
    using Result = typename Chunks::Result;
    const u32 barrier = 1 + static_cast<u32>(thread / 128);
    const i64 ldy = args.ldy ? args.ldy : shape.n, end = T::kBlockM == 1 ? m0 + 1 : args.m;
    TW_UNROLL for (int s = 0; s < kStrips; ++s) TW_UNROLL for (int c = 0; c < kChunks; ++c) {
      const int i = s * kChunks + c;
      u8* chunk = buffer(staging, i);
      if constexpr (Epi::kC) {
        cp_async_wait<0>();
        sync_named(barrier, 128);  // and the previous chunk has left the other buffer
        if (i + 1 < kStrips * kChunks) fetch_c(args, shape, staging, n0, m0, i + 1, thread);
      }
      TW_UNROLL for (int b = 0; b < kTokens / 8; b += kBlocks) {
        float added[kBlocks][2][2] = {};
        if constexpr (Epi::kC) Chunks::Addend::take(chunk + Chunks::kAddendAt, b, added, thread);
        typename Epi::Value v[kBlocks][2][2];
        TW_UNROLL for (int j = 0; j < kBlocks; ++j) {
          Sum sum[4];
          LastWave<T>::whole(sum, sums, s, c * kTokens / 8 + b + j, others);
          TW_UNROLL for (int h = 0; h < 2; ++h) TW_UNROLL for (int e = 0; e < 2; ++e) {
            const int token = c * kTokens + 8 * (b + j) + 2 * (thread % 4) + e;
            const Column column = Items::column_of(x_items, token);
            v[j][h][e] =
                Epi::finish(args, shape, centred(sum[2 * h + e], column, scale.w[s][h]),
                            fmt::scale_of(scale.w[s][h]) * fmt::scale_of(column), scale.bias[s][h], added[j][h][e]);
          }
        }
        Result::put(chunk, b, v, thread);
      }
      if constexpr (T::kAsyncStore) continue;
      sync_named(barrier, 128);
      const i64 row = n0 + (thread / 128 * kStrips + s) * kStripRows;
      if constexpr (T::kGathers)
        Result::store_to(chunk, args.y, ldy, typename T::XRows::Tile(shape, m0), c * kTokens, row, first_n, shape.n,
                         thread);
      else
        Result::store(chunk, args.y, ldy, m0 + c * kTokens, row, first_m, first_n, end, shape.n, thread);
    }
    if constexpr (!T::kAsyncStore)
      sync_named(barrier, 128);  // the next tile's first chunk may be fetched into the buffer that was read last
  }
};

}  // namespace tw::gemm
