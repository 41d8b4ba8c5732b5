// SPDX-License-Identifier: Apache-2.0
// Which tiles of y a persistent block computes, in what order, and which part of k: the same for the producer and the
// math threads of every warpgroup kernel. Tiles are BM tokens by BN rows of w, a stage is BK of k.
//
//   SHARE     blocks of a cluster that take neighbouring tiles of n at once
//   SPLIT     1, or CLUSTER: blocks that share a tile, each with its part of k
//   TAIL      of gemm/wgmma/schedule.cuh
#pragma once
#include "arch/sm90.cuh"
#include "gemm/params.cuh"
#include "gemm/wgmma/schedule.cuh"

namespace tw::gemm {

template <int BM, int BN, int BK, int SHARE, int CLUSTER, int SPLIT, int TAIL>
struct ClusterTiles {
  // Bands of tiles of n, along m within a band, so that what runs at one time reads few rows of either operand.
  static constexpr int kBand = 16 / SHARE;
  // There are fewer than 2^31 tiles, and stages of one.
  u32 n_tiles, m_tiles, clusters, place, k_begin, k_end;
  u32 whole;          // places below this one are tiles side by side, one for each block; those from here on are shared
  bool part = false;  // what next() gave is part of a tile
  bool skip = false;  // and its first stage is loaded, but the other block multiplies it (kClusterTail)

  // A cluster's share of the stages of shared tiles, in order.
  struct Share {
    u32 tile, k, left;  // the next piece's tile, counted from `whole`, and first stage; stages left
  };
  Share share = {};
  u32 stages, quota;  // of a tile; of a share

  // kStreamK: slots for the sums of parts, of a cluster's tiles each; parts of one tile at most.
  TW_MEMBER ClusterTiles(const Args& args, const Shape& shape, i64 slots = 0, int most_parts = 2) {
    n_tiles = static_cast<u32>(ceil_div64(shape.n, BN * SHARE)), m_tiles = static_cast<u32>(ceil_div64(args.m, BM));
    clusters = grid_x() / CLUSTER, place = block_x() / CLUSTER;
    const u32 all = static_cast<u32>(ceil_div64(shape.k, BK)), per = (all + SPLIT - 1) / SPLIT;
    k_begin = SPLIT > 1 ? min2(all, per * cluster_rank()) : 0;
    k_end = SPLIT > 1 ? min2(all, k_begin + per) : all;
    whole = n_tiles * m_tiles;
    [[maybe_unused]] const u32 left = whole % clusters;
    if constexpr (TAIL == kClusterTail) {
      if (2 * left <= clusters) whole -= left;
    }
    if constexpr (TAIL == kStreamK) {
      const i64 shares = min2<i64>(clusters, slots - left);
      stages = all;
      if (left > 0 && shares > left && static_cast<i64>(left) * all < 1ll << 31) {
        whole -= left;
        const u32 of_all = left * stages, parts = static_cast<u32>(most_parts) - 1;
        quota = max2((of_all - 1) / static_cast<u32>(shares) + 1, (stages - 1) / parts + 1);
        share = share_of(place);
      }
    }
  }
  TW_MEMBER Share share_of(u32 cluster) const {
    const u32 all = (n_tiles * m_tiles - whole) * stages, from = min2(all, quota * cluster), tile = from / stages;
    return {tile, from - tile * stages, min2(quota, all - from)};
  }
  // The stages of a share's next piece from its k on, which is taken off it.
  TW_MEMBER u32 take(Share& from) const {
    const u32 count = min2(from.left, stages - from.k);
    from.left -= count, from.k = 0, ++from.tile;
    return count;
  }

  // The next piece: first row of w and token of this block's tile; k_begin and k_end where they change. False: there is
  // none.
  TW_MEMBER bool next(i64& n0, i64& m0) {
    if constexpr (TAIL == kStreamK) {
      if (share.left > 0 && place + clusters >= whole) {  // a whole tile is left for later, if there is any
        k_begin = share.k, locate(whole + share.tile, own_rank(), n0, m0);
        const u32 count = take(share);
        k_end = k_begin + count, part = count < stages;
        return true;
      }
      k_begin = 0, k_end = stages, part = false;
    }
    if (place < whole) {
      locate(place, own_rank(), n0, m0);
      place += clusters;
      return true;
    }
    if constexpr (TAIL == kClusterTail) {
      const u32 tile = whole + (place - whole) / 2;
      if (tile < n_tiles * m_tiles) {
        locate(tile, (place - whole) % 2, n0, m0);
        place += clusters;
        // Parts are equal: where there is a middle, both load it, and the first multiplies.
        const bool second = cluster_rank() == 1;
        const u32 half = (k_end + 1) / 2;
        part = true, skip = second && k_end % 2 != 0;
        if (second)
          k_begin = k_end - half;
        else
          k_end = half;
        return true;
      }
    }
    return false;
  }
  // kQueue, for the producer: the first tile is that of the block's place, and ask() is to be called once in each. As
  // late as the answer allows, since a tile goes to who asks first and not to who is ready first. Blocks ask once for
  // every tile there is, as the last answer that each gets is that there is none: who asks last clears the word.
  u32 asked = 0;
  bool first = true;
  TW_MEMBER void ask(u32* word) { asked = add_relaxed(word, 1); }
  TW_MEMBER bool take(u32* word, i64& n0, i64& m0) {
    if (!first) {
      place = clusters + asked;
      if (asked + 1 == whole) store_relaxed(word, 0);
    }
    if (!locate(place, n0, m0)) return false;
    first = false;
    return true;
  }
  // False: there is no such tile.
  TW_MEMBER bool locate(u32 tile, i64& n0, i64& m0) const {
    if (tile < whole) locate(tile, 0, n0, m0);
    return tile < whole;
  }
  TW_MEMBER static u32 own_rank() { return SHARE > 1 ? cluster_rank() : 0; }
  TW_MEMBER void locate(u32 tile, u32 rank, i64& n0, i64& m0) const {
    const u32 of_band = kBand * m_tiles, band = tile / of_band;
    const u32 within = tile - band * of_band;
    const u32 width = min2(static_cast<u32>(kBand), n_tiles - band * kBand);
    const u32 m = within / width;
    n0 = static_cast<i64>((band * kBand + within - m * width) * SHARE + rank) * BN;
    m0 = static_cast<i64>(m) * BM;
  }
};

}  // namespace tw::gemm
