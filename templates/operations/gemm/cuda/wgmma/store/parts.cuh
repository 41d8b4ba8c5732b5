// SPDX-License-Identifier: Apache-2.0
// Tiles whose k was split: among the blocks of a cluster, among warpgroups, or by Stream-K.
//
// Every block of a cluster sends each other block its sums of that block's slice of rows, and adds what it receives in
// the order of the parts of k. Two slots suffice without acknowledgements: a block sends its sums of a tile after all
// its threads have read those of the previous one, so receiving everybody's sums proves that the previous slot was
// consumed. Producers do not wait; the ring fills meanwhile.
#pragma once
#include "operations/gemm/cuda/wgmma/store/items.cuh"

namespace tw::gemm {

template <class T>
struct StoreParts {
  using X = typename T::X;
  using W = typename T::W;
  using Epi = typename T::Epi;
  using Sum = typename T::Sum;
  using Sums = typename T::Sums;
  TW_CONSTANTS(int, kColumns = T::kColumns, kStrips = T::kStrips, kWarpgroupsN = T::kWarpgroupsN,
               kWarpgroupsK = T::kWarpgroupsK, kSplitK = T::kSplitK, kSums = T::kSums, kMathThreads = T::kMathThreads,
               kParts = T::kParts, kSlice = T::kSlice, kSlotFloats = T::kSlotFloats);
  using Items = TileItems<T>;

  struct Exchange {
    float* slots;  // [2][sender][token][row of the slice]
    u64* arrived;  // [2]
    u32 slot, phase;
  };
  // part: null, or where sums over a part of the tile's k go (StreamKBlock).
  TW_MEMBER static void store_reduced(const Args& args, const Shape& shape, Exchange& exchange, const Sums& sums,
                                      i64 n0, i64 m0, int thread, Sum* part = nullptr) {
    const int tokens = static_cast<int>(min2(static_cast<i64>(T::kBlockM), args.m - m0));
    const u32 rank = kSplitK > 1 ? cluster_rank() : 0;
    float* slot = exchange.slots + exchange.slot * kSlotFloats;
    u64* arrived = exchange.arrived + exchange.slot;
    if constexpr (kSplitK > 1) sync_named(8, kMathThreads);
    if (kSplitK > 1 && thread == 0) barrier_expect(arrived, static_cast<u32>(tokens * kSlice * kParts * 4));
    TW_UNROLL for (int s = 0; s < kStrips; ++s) TW_UNROLL for (int i = 0; i < kSums; ++i) {
      const int token = 8 * (i / 4) + 2 * (thread % 4) + i % 2, row = Items::row_of(thread, s, i % 4 / 2);
      float* to =
          slot + ((static_cast<int>(rank) * kWarpgroupsK + thread / (128 * kWarpgroupsN)) * kColumns + token) * kSlice +
          row % kSlice;
      if (token >= tokens) continue;
      if constexpr (kSplitK == 1)
        *to = bits_as<float>(sums[s][i]);
      else
        store_cluster_async(to, bits_as<float>(sums[s][i]), arrived, static_cast<u32>(row / kSlice));
    }
    if constexpr (kSplitK == 1)
      sync_named(8, kMathThreads);
    else
      barrier_wait(arrived, exchange.phase);
    for (int at = thread; at < tokens * kSlice; at += kMathThreads) {
      Sum sum = 0;
      TW_UNROLL for (int r = 0; r < kParts; ++r) sum +=
          bits_as<Sum>(slot[(r * kColumns + at / kSlice) * kSlice + at % kSlice]);
      if (T::schedule() == Schedule::stream_k && part)
        part[at] = sum;
      else
        store_sum(args, shape, at, sum, n0 + static_cast<int>(rank) * kSlice, m0);
    }
    exchange.phase ^= exchange.slot;
    exchange.slot ^= 1u;
  }
  // Stores the sum of token at / kSlice and row at % kSlice of the slice.
  TW_MEMBER static void store_sum(const Args& args, const Shape& shape, int at, Sum sum, i64 n0, i64 m0) {
    const i64 n = n0 + at % kSlice, m = m0 + at / kSlice;
    if (n >= shape.n || m >= args.m) return;
    const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
    const typename Items::Column of_x = x_item<X>(args, m);
    const float f = tensor_scale<X, W>(args, shape) * Items::factor() * fmt::scale_of(of_w) * fmt::scale_of(of_x);
    Epi::store(args.y, m * (args.ldy ? args.ldy : shape.n) + n,
               Epi::apply(args, shape, m, n, centred(sum, of_x, of_w), f));
  }

  // Stream-K: of a strip's eight tokens, whose sums were added from parts, four of one row. n0, m0: the first row and
  // token of the tile that were multiplied; first_n, first_m: that are stored.
  TW_MEMBER static void store_unit(const Args& args, const Shape& shape, const typename Items::Column* x_items,
                                   int unit, const Sum (&sum)[4], int row, int token, i64 n0, i64 m0, i64 first_n,
                                   i64 first_m, int thread) {
    const i64 n = n0 + (thread / 128 * kStrips + unit / (kSums / 4)) * kStripRows + row,
              ldy = args.ldy ? args.ldy : shape.n;
    if (n < first_n || n >= shape.n) return;
    const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
    const float f = tensor_scale<X, W>(args, shape) * Items::factor() * fmt::scale_of(of_w);
    const typename Epi::Value bias = Epi::bias_at(args.bias, n);
    token += unit % (kSums / 4) * 8;
    const int left = static_cast<int>(min2(args.m - m0 - token, i64{7}));  // tokens
    i64 at = (m0 + token) * ldy + n;
    TW_UNROLL for (int i = 0; i < 4; ++i, at += 2 * ldy) {
      if (2 * i >= left) return;
      if (m0 + token + 2 * i < first_m) continue;
      const typename Items::Column of_x = Items::column_of(x_items, token + 2 * i);
      const float c = Epi::c_at(args, shape, m0 + token + 2 * i, n);
      Epi::store(args.y, at, Epi::finish(args, shape, centred(sum[i], of_x, of_w), f * fmt::scale_of(of_x), bias, c));
    }
  }
};

}  // namespace tw::gemm
