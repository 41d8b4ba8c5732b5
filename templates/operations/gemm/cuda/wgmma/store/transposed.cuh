// SPDX-License-Identifier: Apache-2.0
// Gathered rows whose y has features first (WgmmaKnobs::transposed). A row of a strip is a feature, along which y's
// elements for the rows of x lie, and each warp stores its own sixteen. Or, swapped, it is a row of x: features are
// columns, and a warpgroup turns some of them in staging memory.
#pragma once
#include "operations/gemm/cuda/wgmma/store/items.cuh"
#include "operations/gemm/cuda/wgmma/store/rows.cuh"

namespace tw::gemm {

template <class T>
struct StoreTransposed {
  using Epi = typename T::Epi;
  using Y = typename T::Y;
  using Sums = typename T::Sums;
  using Items = TileItems<T>;
  using Gathered = typename T::XRows::Tile;
  TW_CONSTANTS(int, kColumns = T::kColumns, kStrips = T::kStrips);

  // n0: the first feature; gathered: the tile's rows of x.
  TW_MEMBER static void store(const Args& args, const Shape& shape, u8* staging, const typename Items::RowItems& items,
                              const Sums& sums, const Gathered& gathered, i64 n0, int thread) {
    thread = opaque(thread);
    using Staging = SwappedStaging<Epi>;
    constexpr int kBlocks = Staging::kBlocks, kPieces = ceil_div(kColumns, 64);  // of a row
    const int lane = thread % 32;
    staging += thread % 128 / 32 * Staging::Result::kBytes;
    TW_UNROLL for (int s = 0; s < kStrips; ++s) TW_UNROLL for (int c = 0; c < kPieces; ++c) {
      TW_UNROLL for (int b = 0; b < min2(8, kColumns / 8 - 8 * c); b += kBlocks) {
        typename Epi::Value v[kBlocks][2][2];
        TW_UNROLL for (int j = 0; j < kBlocks; ++j) TW_UNROLL for (int h = 0; h < 2; ++h)
            TW_UNROLL for (int e = 0; e < 2; ++e) {
          const int row = c * 64 + 8 * (b + j) + 2 * (lane % 4) + e;
          const i64 feature = n0 + Items::row_of(thread, s, h);
          float added = 0;
          if constexpr (Epi::kC) {
            const i64 at = feature < shape.n ? gathered.transposed(row, feature) : -1;
            if (at >= 0) added = to_f32(static_cast<const typename Epi::Residual*>(args.c)[at]);
          }
          v[j][h][e] = Epi::finish(args, shape, sums[s][4 * (8 * c + b + j) + 2 * h + e], fmt::scale_of(items.w[s][h]),
                                   items.bias[s][h], added);
          if constexpr (sizeof(Y) == 4) {
            const i64 at = feature < shape.n ? gathered.transposed(row, feature) : -1;
            if (at >= 0) Epi::store(args.y, at, v[j][h][e]);
          }
        }
        if constexpr (sizeof(Y) <= 2) Staging::put(staging, b, v, lane);
      }
      sync_warp();
      if constexpr (sizeof(Y) <= 2) {
        const i64 first = n0 + Items::row_of(thread / 32 * 32, s, 0);
        Staging::Result::pieces(lane, [&](int feature, int at) {
          write_piece<typename Staging::Result>(args.y, staging, feature, at, gathered, first + feature, shape.n,
                                                c * 64);
        });
        sync_warp();
      }
    }
  }

  // Swapped. m0: the first feature.
  TW_MEMBER static void store_swapped(const Args& args, const Shape& shape, u8* staging, const Sums& sums,
                                      const Gathered& gathered, i64 m0, int thread) {
    thread = opaque(thread);
    constexpr int kFeatures = staging_tokens(kColumns, sizeof(Y), 0),
                  kBlocks = min2(kFeatures / 8, 4 / static_cast<int>(sizeof(Y)));
    using Result = Chunk<Y, kFeatures>;
    const u32 barrier = 1 + static_cast<u32>(thread / 128);
    const float tensor = tensor_scale<typename T::X, typename T::W>(args, shape);
    TW_UNROLL for (int s = 0; s < kStrips; ++s) TW_UNROLL for (int c = 0; c < kColumns / kFeatures; ++c) {
      const int row0 = (thread / 128 * kStrips + s) * kStripRows;
      TW_UNROLL for (int b = 0; b < kFeatures / 8; b += kBlocks) {
        typename Epi::Value v[kBlocks][2][2];
        TW_UNROLL for (int j = 0; j < kBlocks; ++j) TW_UNROLL for (int h = 0; h < 2; ++h)
            TW_UNROLL for (int e = 0; e < 2; ++e) {
          const i64 feature = m0 + c * kFeatures + 8 * (b + j) + 2 * (thread % 4) + e,
                    known = min2(feature, args.m - 1);
          float added = 0;
          if constexpr (Epi::kC) {
            const i64 at = feature < args.m ? gathered.transposed(Items::row_of(thread, s, h), feature) : -1;
            if (at >= 0) added = to_f32(static_cast<const typename Epi::Residual*>(args.c)[at]);
          }
          v[j][h][e] = Epi::finish(args, shape, sums[s][4 * (c * kFeatures / 8 + b + j) + 2 * h + e],
                                   tensor * fmt::scale_of(fmt::row_item_at<typename T::X>(args.x.scales, known)),
                                   Epi::bias_at(args.bias, known), added);
        }
        Result::put(staging, b, v, thread);
      }
      sync_named(barrier, 128);
      Result::pieces(thread, [&](int feature, int at) {
        write_piece<Result>(args.y, staging, feature, at, gathered, m0 + c * kFeatures + feature, args.m, row0);
      });
      sync_named(barrier, 128);
    }
  }

 private:
  TW_CONSTANTS(int, kRows = T::kSwapped ? T::kBlockN : T::kColumns);  // of x, of a tile

  // A piece of a row of staging memory: a feature, of which y has `end`, for rows of x from row0 on.
  template <class Staged>
  TW_MEMBER static void write_piece(void* y, const u8* staging, int staged, int at, const Gathered& gathered,
                                    i64 feature, i64 end, int row0) {
    const int row = row0 + at * Staged::kElements;
    if (feature >= end || row >= kRows) return;
    Y* const to = static_cast<Y*>(y);
    const i64 first = gathered.transposed(row, feature);
    if (first >= 0 && first % Staged::kElements == 0 && gathered.adjacent(row, Staged::kElements)) {
      store_global16(to + first, Staged::piece(staging, staged, at));
      return;
    }
    // Ragged rows, in pairs where they are aligned. (Pieces and tiles have even numbers of them.)
    struct alignas(2 * sizeof(Y)) Pair {
      Y of[2];
    };
    TW_NO_UNROLL for (int i = 0; i < Staged::kElements && row + i < kRows; i += 2) {
      const auto element = [&](int e) { return *Staged::element(staging, staged, at * Staged::kElements + i + e); };
      const i64 place = gathered.transposed(row + i, feature);
      if (place >= 0 && place % 2 == 0 && gathered.adjacent(row + i, 2)) {
        *reinterpret_cast<Pair*>(to + place) = Pair{{element(0), element(1)}};
        continue;
      }
      if (place >= 0) to[place] = element(0);
      const i64 next = gathered.transposed(row + i + 1, feature);
      if (next >= 0) to[next] = element(1);
    }
  }
};

}  // namespace tw::gemm
