// SPDX-License-Identifier: Apache-2.0
// Gathered rows whose y has features first (WgmmaKnobs::transposed): a row of a strip is a feature, along which y's
// elements for the rows of x lie, and each warp stores its own sixteen.
#pragma once
#include "gemm/wgmma/store/items.cuh"
#include "gemm/wgmma/store/rows.cuh"

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
        write(args.y, shape, staging, gathered, n0 + Items::row_of(thread / 32 * 32, s, 0), c * 64, lane);
        sync_warp();
      }
    }
  }

 private:
  // Sixteen features from n0 on, of 64 rows of x from row0 on.
  TW_MEMBER static void write(void* y, const Shape& shape, const u8* rows, const Gathered& gathered, i64 n0, int row0,
                              int lane) {
    using Result = Rows<Y, 16, 32>;
    Result::pieces(lane, [&](int feature, int at) {
      const int row = row0 + at * Result::kElements;
      if (n0 + feature >= shape.n || row >= kColumns) return;
      Y* const to = static_cast<Y*>(y);
      const i64 first = gathered.transposed(row, n0 + feature);
      if (first >= 0 && first % Result::kElements == 0 && gathered.adjacent(row, Result::kElements)) {
        store_global16(to + first, Result::piece(rows, feature, at));
        return;
      }
      TW_NO_UNROLL for (int i = 0; i < Result::kElements && row + i < kColumns; ++i) {
        const i64 place = gathered.transposed(row + i, n0 + feature);
        if (place >= 0) to[place] = *Result::element(rows, feature, at * Result::kElements + i);
      }
    });
  }
};

}  // namespace tw::gemm
