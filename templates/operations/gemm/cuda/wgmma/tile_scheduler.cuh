// SPDX-License-Identifier: Apache-2.0
// Which tiles of y a persistent block computes, in what order, and which part of k: the same for the producer and the
// math threads of every warpgroup kernel. Tiles are BM tokens by BN rows of w, a stage is BK of k.
//
//   SHARE     blocks of a cluster that take neighbouring tiles of n at once
//   SPLIT     1, or CLUSTER: blocks that share a tile, each with its part of k
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/gemm/cuda/wgmma/schedule.cuh"
#include "operations/gemm/params.cuh"

namespace tw::gemm {

template <int BM, int BN, int BK, int SHARE, int CLUSTER, int SPLIT, Schedule SCHEDULE>
struct ClusterTiles {
  // Tiles are rasterized in bands along n, and along m within a band, so that concurrent tiles read few rows of either
  // operand. If m is the shorter side and kFewRows at most, a band is one tile wide: blocks side by side, which start
  // together, then read the same rows of the longer side, which L2 and device memory are asked for once
  // (bench/LOG.md).
  TW_CONSTANTS(int, kBand = 16 / SHARE, kFewRows = 3072);
  TW_MEMBER u32 band() const {
    const bool few = m_tiles <= static_cast<u32>(kFewRows / BM) && m_tiles * BM / (BN * SHARE) <= n_tiles;
    return few ? 1 : static_cast<u32>(kBand);
  }
  // There are fewer than 2^31 tiles, and fewer than 2^31 stages per tile.
  u32 n_tiles, m_tiles, clusters, place, k_begin, k_end;
  u32 whole;          // tiles before this one go to one block (or cluster) each; those from here on are shared
  bool part = false;  // next() returned a part of a tile
  bool skip = false;  // its first stage is loaded, but multiplied by the other block (split_last_wave)

  // stream_k: a cluster's share of the stages of shared tiles, in order.
  struct Share {
    u32 tile, k, left;  // the next piece's tile, counted from `whole`, and first stage; stages left
  };
  Share share = {};
  u32 stages, quota;  // of a tile; of a share

  // stream_k: slots for partial sums, each of a cluster's tiles; parts of one tile at most.
  TW_MEMBER ClusterTiles(const Args& args, const Shape& shape, i64 slots = 0, int most_parts = 2) {
    n_tiles = static_cast<u32>(ceil_div64(shape.n, BN * SHARE)), m_tiles = static_cast<u32>(ceil_div64(args.m, BM));
    clusters = grid_x() / CLUSTER, place = block_x() / CLUSTER;
    const u32 all = static_cast<u32>(ceil_div64(shape.k, BK)), per = (all + SPLIT - 1) / SPLIT;
    k_begin = SPLIT > 1 ? min2(all, per * cluster_rank()) : 0;
    k_end = SPLIT > 1 ? min2(all, k_begin + per) : all;
    whole = n_tiles * m_tiles;
    [[maybe_unused]] const u32 left = whole % clusters;
    if constexpr (SCHEDULE == Schedule::split_last_wave) {
      if (2 * left <= clusters) whole -= left;
    }
    if constexpr (SCHEDULE == Schedule::stream_k) {
      const i64 shares = min2(i64{clusters}, slots - left);
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
  // Removes a share's next piece and returns its number of stages.
  TW_MEMBER u32 take(Share& from) const {
    const u32 count = min2(from.left, stages - from.k);
    from.left -= count, from.k = 0, ++from.tile;
    return count;
  }

  // The next piece of work: the first row of w and the first token of this block's tile, and k_begin and k_end if they
  // change. False if there is none.
  TW_MEMBER bool next(i64& n0, i64& m0) {
    if constexpr (SCHEDULE == Schedule::stream_k) {
      // Pieces of shared tiles come before the last whole tile, which hides the exchange of partial sums.
      if (share.left > 0 && place + clusters >= whole) {
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
    if constexpr (SCHEDULE == Schedule::split_last_wave) {
      const u32 tile = whole + (place - whole) / 2;
      if (tile < n_tiles * m_tiles) {
        locate(tile, (place - whole) % 2, n0, m0);
        place += clusters;
        // Both blocks load equally many stages: of an odd number both load the middle one, and the first multiplies it.
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
  // Schedule::queue, for the producer. A block's first tile is that of its number; request() is called once in each
  // tile, as late as the answer's latency allows, since the first requester gets the next tile and not the first to be
  // ready. Each block's last answer is that no tile is left, so there are as many requests as tiles; the last one
  // resets the counter.
  u32 requested = 0;
  bool first = true;
  TW_MEMBER void request(u32* word) { requested = add_relaxed(word, 1); }
  TW_MEMBER bool take(u32* word, i64& n0, i64& m0) {
    if (!first) {
      place = clusters + requested;
      if (requested + 1 == whole) store_relaxed(word, 0);
    }
    if (!locate(place, n0, m0)) return false;
    first = false;
    return true;
  }
  // False if there is no such tile.
  TW_MEMBER bool locate(u32 tile, i64& n0, i64& m0) const {
    if (tile < whole) locate(tile, 0, n0, m0);
    return tile < whole;
  }
  TW_MEMBER static u32 own_rank() { return SHARE > 1 ? cluster_rank() : 0; }
  TW_MEMBER void locate(u32 tile, u32 rank, i64& n0, i64& m0) const {
    const u32 of_band = band() * m_tiles, first = tile / of_band * band();  // the band's first tile along n
    const u32 within = tile - first * m_tiles;
    const u32 width = min2(band(), n_tiles - first);
    const u32 m = within / width;
    n0 = static_cast<i64>((first + within - m * width) * SHARE + rank) * BN;
    m0 = static_cast<i64>(m) * BM;
  }
};

}  // namespace tw::gemm
