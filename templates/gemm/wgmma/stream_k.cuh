// SPDX-License-Identifier: Apache-2.0
// Sums of tiles that several clusters made in parts (kStreamK), on their way through the caller's workspace. Nobody
// waits for long: a kernel whose blocks are not all resident ends all the same.
//
// A warpgroup puts its part of a tile down and says so in the tile's word; when it has nothing else to do, it comes
// back for its slice of that tile, an equal number of units of all rows. If all parts are there by then, it adds them
// in the order of k and stores the result; if not, it leaves the slice to who puts the last part down. The last of all
// who come back clears the word.
//
// Workspace: words (parts put down; warpgroups that came back; a bit for each of these), then slots of parts, the
// threads' side by side.
#pragma once
#include "arch/sm90.cuh"
#include "gemm/params.cuh"
#include "gemm/wgmma/schedule.cuh"

namespace tw::gemm {

// Which clusters have parts of a shared tile.
struct Owners {
  u32 first, count;
};
template <class Tiles>
TW_DEVICE Owners owners_of(const Tiles& tiles, u32 tile) {
  const u32 first = tile * tiles.stages / tiles.quota, last = (tile * tiles.stages + tiles.stages - 1) / tiles.quota;
  return {first, last - first + 1};
}

// Of a warpgroup's thread, STRIPS strips of SUMS sums; GROUPS warpgroups in each of CLUSTER blocks.
// RING bytes of shared memory are free once all is multiplied.
template <class Sum, int STRIPS, int SUMS, int GROUPS, int CLUSTER, int RING>
struct StreamK {
  static constexpr int kUnits = STRIPS * SUMS / 4;  // of eight tokens of a strip
  static constexpr i64 kSlotBytes = stream_k_slot_bytes(CLUSTER, 2 * SUMS, 64 * STRIPS * GROUPS);
  static constexpr i64 kMostTiles =
      kTailWordBytes / (4 * CLUSTER * GROUPS);  // that have words; a tile has more slots than one
  static constexpr int kUnitBytes = 2048, kBufferUnits = RING / (GROUPS * kUnitBytes);
  static constexpr int kPartsLimit = min2(kMostParts, kBufferUnits);
  static constexpr u32 kReturned = 1u << 8, kSlice = 1u << 16;  // in a word
  static constexpr int kPolls = 30;  // some 20 us: shares are equal, so the others come soon if they run at all

  u8* workspace;
  // In shared memory: barriers of copies, one for each warpgroup; and two words for each, since a share has at most the
  // end of one tile and the begin of another.
  u64* arrived;
  int untold = -1;  // a tile whose part is put down

  // How many the workspace has room for.
  TW_MEMBER static i64 slots(const Shape& shape) {
    return shape.workspace < kTailWordBytes ? 0 : min2((shape.workspace - kTailWordBytes) / kSlotBytes, kMostTiles);
  }

  TW_MEMBER i64 place(i64 of, int thread) const {  // of a warpgroup's, in a list with GROUPS for each block
    return (of * CLUSTER + (CLUSTER > 1 ? cluster_rank() : 0)) * GROUPS + thread / 128;
  }
  TW_MEMBER u32* word(u32 tile, int thread) const { return reinterpret_cast<u32*>(workspace) + place(tile, thread); }
  // A cluster has one part of a tile, and its next one is of the next tile: so the sum of their numbers is a part's
  // alone.
  TW_MEMBER Sum* sums_of(u32 cluster, u32 tile, int thread) const {
    return reinterpret_cast<Sum*>(workspace + kTailWordBytes) + place(cluster + tile, thread) * (kUnits * 512);
  }
  // Slices that this warpgroup is to add up.
  TW_MEMBER u32& slices(u32 first_stage, int thread) const {
    return reinterpret_cast<u32*>(arrived + GROUPS)[thread / 128 * 2 + (first_stage > 0 ? 0 : 1)];
  }
  TW_MEMBER static u32 own_cluster() { return block_x() / CLUSTER; }
  TW_MEMBER static void sync(int thread) { sync_named(1 + static_cast<u32>(thread / 128), 128); }

  // The part of the piece that tiles gave last.
  template <class Tiles>
  TW_MEMBER void put(const Tiles& tiles, const Sum (&sums)[STRIPS][SUMS], int thread) {
    thread = from_here(thread);
    untold = static_cast<int>(tiles.share.tile) - 1;
    Sum* to = sums_of(own_cluster(), tiles.share.tile - 1, thread) + thread % 128;
    // Word by word: as vectors they would have to lie side by side in registers, and the matrix instructions be
    // serialized.
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int i = 0; i < SUMS; ++i) to[(s * SUMS + i) * 128] =
        sums[s][i];
  }
  // Says what was put down: later, when it has arrived and nobody has to wait for that.
  template <class Tiles>
  TW_MEMBER void tell(const Tiles& tiles, int thread) {
    if (untold < 0) return;
    thread = from_here(thread);
    sync(thread);
    if (thread % 128 == 0) {
      const u32 tile = static_cast<u32>(untold), before = add_global<true>(word(tile, thread), 1);
      const bool last = before % kReturned + 1 == owners_of(tiles, tile).count;
      slices(own_cluster() * tiles.quota > tile * tiles.stages ? 1 : 0, thread) = last ? before / kSlice : 0;
    }
    untold = -1;
  }

  // Goes back to what this warpgroup has put down; everything else is done, so that the ring of stages has room for
  // what the others put. begin(m0): of a tile; store(unit, sums of four tokens, row, token, n0, m0): row of the strip,
  // and the first of four tokens, two apart.
  template <class Tiles, class Begin, class Store>
  TW_MEMBER void combine(const Tiles& tiles, u8* ring, int thread, const Begin& begin, const Store& store) {
    static_assert(kPartsLimit > 2, "a ring too small");
    thread = from_here(thread);
    tell(tiles, thread);
    sync(thread);  // pieces come back by different threads, none before it was told
    int piece = 0;
    pieces(tiles, [&](u32 tile, u32 first_stage) {
      if (thread % 128 == 32 * piece++)
        come_back(owners_of(tiles, tile), word(tile, thread), slices(first_stage, thread));
    });
    sync_named(8, 128 * GROUPS);  // the others read the ring no more
    u8* buffer = ring + thread / 128 * kBufferUnits * kUnitBytes;
    u32 phase = 0;
    pieces(tiles, [&](u32 tile, u32 first_stage) {
      const Owners owners = owners_of(tiles, tile);
      const int count = static_cast<int>(owners.count), at_once = kBufferUnits / count;
      i64 n0, m0;
      tiles.locate(tiles.whole + tile, tiles.own_rank(), n0, m0);
      const u32 mine = slices(first_stage, thread);
      begin(m0);
      TW_NO_UNROLL for (int slice = 0; slice < count; ++slice) {
        if ((mine >> slice & 1u) == 0) continue;
        const int end = (slice + 1) * kUnits / count;
        TW_NO_UNROLL for (int unit = slice * kUnits / count; unit < end; unit += at_once) {
          const int units = min2(at_once, end - unit);
          if (thread % 128 == 0) fetch(owners, tile, unit, units, buffer, thread);
          barrier_wait(arrived + thread / 128, phase);
          phase ^= 1u;
          add_up(buffer, unit, units, count, thread,
                 [&](int at, const Sum(&sum)[4], int row, int token) { store(at, sum, row, token, n0, m0); });
          sync(thread);  // all have read it
        }
      }
    });
  }

 private:
  // visit(tile, first stage) for the parts of this cluster's share.
  template <class Tiles, class Visit>
  TW_MEMBER static void pieces(const Tiles& tiles, const Visit& visit) {
    auto share = tiles.share_of(own_cluster());
    TW_NO_UNROLL while (share.left > 0) {
      const u32 tile = share.tile, first_stage = share.k;
      if (tiles.take(share) < tiles.stages) visit(tile, first_stage);
    }
  }
  TW_MEMBER static void come_back(const Owners& owners, u32* word, u32& slices) {
    const u32 own = own_cluster() - owners.first;
    TW_NO_UNROLL for (int i = 0; i < kPolls && load_relaxed(word) % kReturned != owners.count; ++i) pause();
    const u32 before = add_global<false>(word, kReturned + (kSlice << own));
    if (before % kReturned == owners.count) slices |= 1u << own;
    if (before / kReturned % 256 + 1 == owners.count) store_relaxed(word, 0);
  }
  // Asks for these units of all parts, one part's after the other's.
  TW_MEMBER void fetch(const Owners& owners, u32 tile, int unit, int units, u8* buffer, int thread) const {
    const u32 bytes = static_cast<u32>(units * kUnitBytes);
    u64* barrier = arrived + thread / 128;
    fence_async_global();
    barrier_expect(barrier, bytes * owners.count);
    TW_NO_UNROLL for (u32 c = 0; c < owners.count; ++c) bulk_load(
        buffer + c * bytes, sums_of(owners.first + c, tile, thread) + unit * 512, bytes, barrier, kEvictFirst);
  }
  // A thread reads what four threads had in one register: one row's sums of four tokens. A warp has 32 rows of each of
  // them, so that it stores whole sectors.
  template <class Store>
  TW_MEMBER static void add_up(const u8* buffer, int unit, int units, int count, int thread, const Store& store) {
    const int lane = thread % 32, warp = thread % 128 / 32, eight = lane / 16, token = warp % 2,
              fours = warp / 2 * 16 + lane % 16;
    const int row = fours / 8 * 16 + eight * 8 + fours % 8;
    buffer += (2 * eight + token) * 512 + fours * 16;
    constexpr int kAtOnce = 2;
    TW_NO_UNROLL for (int first = 0; first < units; first += kAtOnce) {
      Sum sums[kAtOnce][4] = {};
      TW_NO_UNROLL for (int c = 0; c < count; ++c) TW_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        const u32x4 part =
            *reinterpret_cast<const u32x4*>(buffer + (c * units + min2(first + i, units - 1)) * kUnitBytes);
        sums[i][0] += bits_as<Sum>(part.x), sums[i][1] += bits_as<Sum>(part.y);
        sums[i][2] += bits_as<Sum>(part.z), sums[i][3] += bits_as<Sum>(part.w);
      }
      TW_UNROLL for (int i = 0; i < kAtOnce; ++i) if (first + i < units) store(unit + first + i, sums[i], row, token);
    }
  }
};

// The same of a block's few sums, BM tokens by BN rows, which its threads have added up among themselves. Whoever put a
// tile's last part down adds all of them up when it has nothing else to do.
template <class Sum, int BM, int BN>
struct StreamKFew {
  static constexpr i64 kSlotBytes = stream_k_slot_bytes(1, BM, BN), kMostTiles = kTailWordBytes / 4;
  static constexpr int kPartsLimit = kMostParts;
  static constexpr u32 kAtOnce = 4;  // parts of a sum, whose loads wait together

  u8* workspace;
  int count = 0;      // parts put down: the end of one tile and the begin of another at most
  bool last[2] = {};  // thread 0: nobody else's is missing

  TW_MEMBER static i64 slots(const Shape& shape) {
    return shape.workspace < kTailWordBytes ? 0 : min2((shape.workspace - kTailWordBytes) / kSlotBytes, kMostTiles);
  }
  TW_MEMBER Sum* sums_of(u32 block, u32 tile) const {
    return reinterpret_cast<Sum*>(workspace + kTailWordBytes + (block + tile) * kSlotBytes);
  }
  // All `threads` of the block have put down what they have of a tile.
  template <class Tiles>
  TW_MEMBER void tell(const Tiles& tiles, u32 tile, int thread, int threads) {
    sync_named(8, static_cast<u32>(threads));
    if (thread == 0) {
      u32* word = reinterpret_cast<u32*>(workspace) + tile;
      const bool all = add_global<true>(word, 1) + 1 == owners_of(tiles, tile).count;
      if (all) store_relaxed(word, 0);
      last[count > 0] = all;
    }
    ++count;
  }
  // store(at, sum, n0, m0) of the tiles that this block completes; `told`: two words of shared memory.
  template <class Tiles, class Store>
  TW_MEMBER void combine(const Tiles& tiles, i64 m, u32* told, int thread, int threads, const Store& store) const {
    if (count == 0) return;
    sync_named(8, static_cast<u32>(threads));
    if (thread == 0) told[0] = last[0], told[1] = last[1];
    sync_named(8, static_cast<u32>(threads));
    auto share = tiles.share_of(block_x());
    TW_NO_UNROLL for (int piece = 0; share.left > 0;) {
      const u32 tile = share.tile;
      if (tiles.take(share) == tiles.stages || told[piece++] == 0) continue;
      const Owners owners = owners_of(tiles, tile);
      i64 n0, m0;
      tiles.locate(tiles.whole + tile, 0, n0, m0);
      const int sums = static_cast<int>(min2<i64>(BM, m - m0)) * BN;
      for (int at = thread; at < sums; at += threads) {
        Sum sum = 0;
        for (u32 first = 0; first < owners.count; first += kAtOnce) {
          Sum part[kAtOnce] = {};
          TW_UNROLL for (u32 c = 0; c < kAtOnce; ++c) if (first + c < owners.count) part[c] =
              sums_of(owners.first + first + c, tile)[at];
          TW_UNROLL for (u32 c = 0; c < kAtOnce; ++c) sum += part[c];
        }
        store(at, sum, n0, m0);
      }
    }
  }
};

}  // namespace tw::gemm
