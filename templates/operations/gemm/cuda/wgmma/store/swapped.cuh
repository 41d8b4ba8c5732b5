// SPDX-License-Identifier: Apache-2.0
// Swapped operands: a row of a strip is a token, so a piece of a row of y, and each warp stores its own sixteen.
#pragma once
#include "operations/gemm/cuda/wgmma/store/items.cuh"
#include "operations/gemm/cuda/wgmma/store/rows.cuh"

namespace tw::gemm {

template <class T>
struct StoreSwapped {
  using X = typename T::X;
  using W = typename T::W;
  using Epi = typename T::Epi;
  using Y = typename T::Y;
  using Sums = typename T::Sums;
  TW_CONSTANTS(int, kColumns = T::kColumns, kStrips = T::kStrips);

  // n0 and m0: the first token and feature that were multiplied; first_n, first_m: that are stored.
  TW_MEMBER static void store(const Args& args, const Shape& shape, u8* staging, const Sums& sums, i64 n0, i64 m0,
                              i64 first_n, i64 first_m, int thread) {
    thread = opaque(thread);
    using Staging = SwappedStaging<Epi>;
    constexpr int kBlocks = Staging::kBlocks, kPieces = ceil_div(kColumns, 64);  // of a row
    static_assert(kColumns % (8 * kBlocks) == 0 && !fmt::has_zero_point<X>() && !fmt::has_zero_point<W>(),
                  "columns are stored in whole pieces, and neither operand has zero points");
    const i64 tokens = shape.n, features = args.m, ldy = args.ldy ? args.ldy : features,
              end = min2(features, m0 + kColumns);
    const int lane = thread % 32;
    const float tensor = tensor_scale<X, W>(args, shape);
    staging += thread % 128 / 32 * (T::kAsyncStore ? kStrips * kPieces * Staging::Result::kBytes : Staging::kBytes);
    [[maybe_unused]] const auto gathered = T::template tile_rows<typename T::XRows::Tile>(shape, n0);
    const auto row_at = [&](int i) { return n0 + TileItems<T>::row_of(thread / 32 * 32, i / kPieces, 0); };
    const auto fetch = [&](int i) {
      if constexpr (Epi::kC) {
        u8* const to = staging + i % 2 * Staging::kBuffer + Staging::kAddendAt;
        const i64 ldc = args.ldc ? args.ldc : features, column = m0 + i % kPieces * 64;
        if constexpr (T::kGathers)
          Staging::Addend::fetch_from(to, args.c, ldc, gathered, static_cast<int>(row_at(i) - n0), column, end, lane);
        else
          Staging::Addend::fetch(to, args.c, ldc, row_at(i), column, tokens, end, lane);
      }
    };
    fetch(0);
    TW_UNROLL for (int s = 0; s < kStrips; ++s) {
      float scale[2];
      TW_UNROLL for (int h = 0; h < 2; ++h) {
        scale[h] = tensor;
        scale[h] *= fmt::scale_of(
            fmt::row_item_at<W>(args.w.scales, min2(n0 + TileItems<T>::row_of(thread, s, h), tokens - 1)));
      }
      TW_UNROLL for (int c = 0; c < kPieces; ++c) {
        const int i = s * kPieces + c;
        u8* rows = staging + (T::kAsyncStore ? i * Staging::Result::kBytes : Epi::kC ? i % 2 * Staging::kBuffer : 0);
        if constexpr (Epi::kC) {
          cp_async_wait<0>();
          sync_warp();
          if (i + 1 < kStrips * kPieces) fetch(i + 1);
        }
        TW_UNROLL for (int b = 0; b < min2(8, kColumns / 8 - 8 * c); b += kBlocks) {
          float added[kBlocks][2][2] = {};
          if constexpr (Epi::kC) Staging::take(rows + Staging::kAddendAt, b, added, lane);
          typename Epi::Value v[kBlocks][2][2];
          TW_UNROLL for (int j = 0; j < kBlocks; ++j) TW_UNROLL for (int h = 0; h < 2; ++h)
              TW_UNROLL for (int e = 0; e < 2; ++e) {
            const i64 n = m0 + c * 64 + 8 * (b + j) + 2 * (lane % 4) + e;
            const i64 column = min2(n, features - 1);
            v[j][h][e] = Epi::finish(args, shape, sums[s][4 * (8 * c + b + j) + 2 * h + e],
                                     scale[h] * fmt::scale_of(fmt::row_item_at<X>(args.x.scales, column)),
                                     Epi::bias_at(args.bias, column), added[j][h][e]);
          }
          if constexpr (sizeof(Y) <= 2) {
            Staging::put(rows, b, v, lane);
          } else {
            TW_UNROLL for (int h = 0; h < 2; ++h) {
              const int row = TileItems<T>::row_of(thread, s, h);
              const i64 n = m0 + c * 64 + 8 * b + 2 * (lane % 4);
              i64 m = n0 + row;
              if constexpr (T::kGathers)
                m = gathered.row(row);
              else if (m < first_n || m >= tokens)
                m = -1;
              if (m < 0 || n < first_m || n >= features) continue;
              if (features % 2 != 0 && n + 1 == features)
                Epi::store(args.y, m * ldy + n, v[0][h][0]);
              else if (ldy % 2 == 0)
                Epi::store_pair(args.y, m * ldy + n, v[0][h][0], v[0][h][1]);
              else
                Epi::store(args.y, m * ldy + n, v[0][h][0]), Epi::store(args.y, m * ldy + n + 1, v[0][h][1]);
            }
          }
        }
        sync_warp();  // also so that not all scales of a tile are read before the first is used
        if constexpr (T::kAsyncStore) continue;
        if constexpr (sizeof(Y) <= 2) {
          if constexpr (T::kGathers)
            Staging::Result::store_to(rows, args.y, ldy, gathered, static_cast<int>(row_at(i) - n0), m0 + c * 64,
                                      first_m, end, lane);
          else
            Staging::Result::store(rows, args.y, ldy, row_at(i), m0 + c * 64, first_n, first_m, tokens, end, lane);
          sync_warp();
        }
      }
    }
  }
};

}  // namespace tw::gemm
