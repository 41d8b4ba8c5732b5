// SPDX-License-Identifier: Apache-2.0
// Asynchronous stores: math warpgroups leave a finished tile in a buffer in shared memory and go on with the next one;
// the warps beside the producer, idle otherwise, write it to y.
#pragma once
#include "operations/gemm/cuda/wgmma/grouped_tiles.cuh"
#include "operations/gemm/cuda/wgmma/store/rows.cuh"

namespace tw::gemm {

// Each warpgroup along n has its part of the buffer, with two barriers: `full` is for its four warps, `empty` for the
// storing warps.
template <class T>
struct AsyncStore {
  using Y = typename T::Y;
  TW_CONSTANTS(int, kColumns = T::kColumns, kStrips = T::kStrips);
  TW_CONSTANTS(int, kStoreWarps = 3);

  u8* buffer;
  u64 *full, *empty;  // of each warpgroup
  u32 phase = 0;

  TW_MEMBER u8* part(int group) const { return buffer + group * (T::kStagingBytes / T::kWarpgroupsN); }

  // For math warps: put(buffer) writes a tile into what a warpgroup has of shared memory besides the ring, which is
  // staging memory if stores are synchronous.
  template <class Put>
  TW_MEMBER void place(int thread, const Put& put) {
    const int group = thread / 128;
    if constexpr (T::kAsyncStore) barrier_wait(empty + group, phase ^ 1u);
    put(part(group));
    if constexpr (T::kAsyncStore) arrive(full + group, thread % 32), phase ^= 1u;
  }

  // The loop of storing warp `warp`.
  template <class Tiles>
  TW_MEMBER void run(const Args& args, const Shape& shape, Tiles tiles, int warp, int lane) {
    for (i64 n0, m0; tiles.next(n0, m0); phase ^= 1u) {
      const TileGemm<T> gemm(args, shape, tiles);
      TW_NO_UNROLL for (int group = 0; group < T::kWarpgroupsN; ++group) {
        barrier_wait(full + group, phase);
        store(gemm.args, gemm.shape, part(group), group, n0, m0, warp, lane);
        arrive(empty + group, lane);
      }
    }
  }

 private:
  TW_MEMBER static void arrive(u64* barrier, int lane) {
    sync_warp();
    if (lane == 0) barrier_arrive(barrier);
  }

  // A warp's share of a warpgroup's tile.
  TW_MEMBER static void store(const Args& args, const Shape& shape, const u8* tile, int group, i64 n0, i64 m0, int warp,
                              int lane) {
    constexpr int kRows = T::kSwapped || kColumns % 16 == 0 ? 16 : 8;  // of y
    using Piece = Rows<Y, kRows, 32>;
    constexpr int kAcross = T::kSwapped ? ceil_div(kColumns, 64)
                                        : kColumns / kRows;  // pieces of a strip, or of a warp's sixteen rows of it
    constexpr int kPieces = kStrips * kAcross * (T::kSwapped ? 4 : 1);
    const i64 row0 = T::first_row(shape, n0), token0 = T::first_token(args, m0);
    const i64 first = row0 + group * kStrips * kStripRows;
    const i64 rows = T::kSwapped ? shape.n : args.m, columns = T::kSwapped ? args.m : shape.n,
              ldy = args.ldy ? args.ldy : columns;
    [[maybe_unused]] const auto gathered = T::template tile_rows<typename T::XRows::Tile>(shape, T::kSwapped ? n0 : m0);
    TW_NO_UNROLL for (int i = warp; i < kPieces; i += kStoreWarps) {
      const int strip = i / kAcross % kStrips, at = i % kAcross;
      const u8* piece = tile + i * Piece::kBytes;
      const i64 at_row = first + strip * kStripRows + (T::kSwapped ? i / kAcross / kStrips * 16 : 0);
      if constexpr (T::kGathers && T::kSwapped)
        Piece::store_to(piece, args.y, ldy, gathered, static_cast<int>(at_row - row0), token0 + at * 64, m0,
                        min2(columns, token0 + kColumns), lane);
      else if constexpr (T::kGathers)
        Piece::store_to(piece, args.y, ldy, gathered, at * kRows, at_row, n0, columns, lane);
      else if constexpr (T::kSwapped)
        Piece::store(piece, args.y, ldy, at_row, token0 + at * 64, n0, m0, rows, min2(columns, token0 + kColumns),
                     lane);
      else
        Piece::store(piece, args.y, ldy, token0 + at * kRows, at_row, m0, n0, rows, columns, lane);
    }
  }
};

}  // namespace tw::gemm
