// SPDX-License-Identifier: Apache-2.0
// Which tiles of y a persistent block computes, in what order, and which part of k: the same for the producer and the math threads
// of every warpgroup kernel. Tiles are BM tokens by BN rows of w, a stage is BK of k.
//
//   SHARE     blocks of a cluster that take neighbouring tiles of n at once
//   SPLIT     1, or CLUSTER: blocks that share a tile, each with its part of k
//   TAIL      where the last round has tiles for half of the clusters or fewer, a cluster takes one tile and splits its k (SHARE 2)
#pragma once
#include "core/ptx.cuh"
#include "gemm/params.cuh"

namespace tw::gemm {

template <int BM, int BN, int BK, int SHARE, int CLUSTER, int SPLIT, bool TAIL> struct ClusterTiles {
  // Bands of tiles of n, along m within a band, so that what runs at one time reads few rows of either operand.
  static constexpr int kBand = 16 / SHARE;
  i64 n_tiles, m_tiles, clusters, first, k_begin, k_end;
  i64 whole;  // TAIL: places below this one are tiles side by side, one for each block; from here on one for a cluster
  TW_MEMBER ClusterTiles(const Args& args, const Shape& shape) {
    n_tiles = ceil_div64(shape.n, BN * SHARE), m_tiles = ceil_div64(args.m, BM);
    clusters = grid_x() / CLUSTER, first = block_x() / CLUSTER;
    const i64 blocks = ceil_div64(shape.k, BK), per = SPLIT > 1 ? ceil_div64(blocks, SPLIT) : blocks;
    k_begin = SPLIT > 1 ? min2(blocks, per * static_cast<i64>(cluster_rank())) : 0;
    k_end = SPLIT > 1 ? min2(blocks, k_begin + per) : blocks;
    whole = n_tiles * m_tiles;
    if constexpr (TAIL) {
      const i64 left = whole % clusters;
      if (2 * left <= clusters) whole -= left;
    }
  }
  // Places, of which cluster i takes i, i + clusters, ...
  TW_MEMBER i64 count() const { return TAIL ? 2 * n_tiles * m_tiles - whole : n_tiles * m_tiles; }
  TW_MEMBER bool shared(i64 place) const { return TAIL && place >= whole; }
  // From here on k is this block's part. Parts are equal: where there is a middle, both load it, and the first multiplies.
  // Returns whether this block is to pass over its first.
  TW_MEMBER bool share_k() {
    const bool second = cluster_rank() == 1, middle = k_end % 2 != 0;
    const i64 part = (k_end + 1) / 2;
    if (second) k_begin = k_end - part;
    else k_end = part;
    return second && middle;
  }
  // First row of w of this block's tile, and first token.
  TW_MEMBER void at(i64 place, i64& n0, i64& m0) const {
    i64 tile = place;
    u32 rank = SHARE > 1 ? cluster_rank() : 0;
    if (shared(place)) tile = whole + (place - whole) / 2, rank = static_cast<u32>(place - whole) % 2;
    // There are fewer than 2^31 tiles, and divisions of words are much shorter.
    const u32 of_band = kBand * static_cast<u32>(m_tiles), band = static_cast<u32>(tile) / of_band;
    const u32 within = static_cast<u32>(tile) - band * of_band;
    const u32 width = min2(static_cast<u32>(kBand), static_cast<u32>(n_tiles) - band * kBand);
    const u32 m = within / width;
    n0 = static_cast<i64>((band * kBand + within - m * width) * SHARE + rank) * BN;
    m0 = static_cast<i64>(m) * BM;
  }
};

}  // namespace tw::gemm
