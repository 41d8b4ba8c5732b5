// SPDX-License-Identifier: Apache-2.0
// Stream-K (Schedule::stream_k): partial sums of tiles that several clusters share meet in the caller's workspace. No
// cluster waits long for another, so a kernel whose blocks are not all resident ends all the same.
//
// A warpgroup writes its partial sums of a tile to the workspace and counts them in the tile's word. When its own work
// is done, it returns for its slice of that tile, an equal share of the tile's units. If all parts have been written by
// then, it adds them in the order of k and stores the result; if not, it leaves the slice to the warpgroup that writes
// the last part. The last warpgroup to return clears the word.
//
// Workspace: the words (count of parts, count of returned warpgroups, and a bit for each of those that left their slice
// to the last), then what a prologue writes, then slots for partial sums, in which the threads' sums are interleaved.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/gemm/cuda/wgmma/schedule.cuh"
#include "operations/gemm/params.cuh"

namespace tw::gemm {

// The clusters that contribute parts to a shared tile.
struct Contributors {
  u32 first, count;
};
template <class Tiles>
TW_DEVICE Contributors contributors_of(const Tiles& tiles, u32 tile) {
  const u32 first = tile * tiles.stages / tiles.quota, last = (tile * tiles.stages + tiles.stages - 1) / tiles.quota;
  return {first, last - first + 1};
}

// A thread has STRIPS strips of SUMS sums; there are GROUPS warpgroups in each of CLUSTER blocks. RING bytes of shared
// memory are free once everything is multiplied.
template <class Sum, int STRIPS, int SUMS, int GROUPS, int CLUSTER, int RING>
struct StreamK {
  TW_CONSTANTS(int, kUnits = STRIPS * SUMS / 4);  // eight tokens of a strip each
  TW_CONSTANTS(i64, kSlotBytes = stream_k_slot_bytes(CLUSTER, 2 * SUMS, 64 * STRIPS * GROUPS));
  TW_CONSTANTS(i64, kMostTiles = kTileWordBytes / (4 * CLUSTER * GROUPS));  // with words of their own
  TW_CONSTANTS(int, kUnitBytes = 2048, kBufferUnits = RING / (GROUPS * kUnitBytes));
  TW_CONSTANTS(int, kPartsLimit = min2(kMaxParts, kBufferUnits));
  TW_CONSTANTS(u32, kReturned = 1u << 8, kSlice = 1u << 16);  // in a word
  TW_CONSTANTS(int, kPolls = 30);  // some 20 us: shares are equal, so the others finish soon if they run at all

  u8* workspace;
  i64 slots_at;  // bytes from there
  // In shared memory: a barrier for each warpgroup's copies, then two words for each, since a share has at most the end
  // of one tile and the start of another.
  u64* arrived;
  int unsignalled = -1;  // a tile whose part is written but not yet counted

  // Slots that the workspace has room for.
  TW_MEMBER static i64 slots(const Shape& shape, i64 slots_at) {
    return shape.workspace < slots_at ? 0 : min2((shape.workspace - slots_at) / kSlotBytes, kMostTiles);
  }

  TW_MEMBER i64 place(i64 of, int thread) const {  // index of a warpgroup's entry, with GROUPS entries per block
    return (of * CLUSTER + (CLUSTER > 1 ? cluster_rank() : 0)) * GROUPS + thread / 128;
  }
  TW_MEMBER u32* word(u32 tile, int thread) const { return reinterpret_cast<u32*>(workspace) + place(tile, thread); }
  // A cluster has one part of a tile, and its next part is of the next tile: cluster + tile is unique to a part.
  TW_MEMBER Sum* sums_of(u32 cluster, u32 tile, int thread) const {
    return reinterpret_cast<Sum*>(workspace + slots_at) + place(cluster + tile, thread) * (kUnits * 512);
  }
  // Bits of the slices that this warpgroup is to add.
  TW_MEMBER u32& slices(u32 first_stage, int thread) const {
    return reinterpret_cast<u32*>(arrived + GROUPS)[thread / 128 * 2 + (first_stage > 0 ? 0 : 1)];
  }
  TW_MEMBER static u32 own_cluster() { return block_x() / CLUSTER; }
  TW_MEMBER static void sync(int thread) { sync_named(1 + static_cast<u32>(thread / 128), 128); }

  // Writes the partial sums of the piece that tiles.next() returned.
  template <class Tiles>
  TW_MEMBER void put(const Tiles& tiles, const Sum (&sums)[STRIPS][SUMS], int thread) {
    thread = opaque(thread);
    unsignalled = static_cast<int>(tiles.share.tile) - 1;
    Sum* to = sums_of(own_cluster(), tiles.share.tile - 1, thread) + thread % 128;
    // Word by word: vectors would need adjacent registers, and ptxas would serialize the matrix instructions.
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int i = 0; i < SUMS; ++i) to[(s * SUMS + i) * 128] =
        sums[s][i];
  }
  // Counts what put() wrote: later, when the stores have completed and nothing waits for them.
  template <class Tiles>
  TW_MEMBER void signal(const Tiles& tiles, int thread) {
    if (unsignalled < 0) return;
    thread = opaque(thread);
    sync(thread);
    if (thread % 128 == 0) {
      const u32 tile = static_cast<u32>(unsignalled), before = add_global<true>(word(tile, thread), 1);
      const bool last = before % kReturned + 1 == contributors_of(tiles, tile).count;
      slices(own_cluster() * tiles.quota > tile * tiles.stages ? 1 : 0, thread) = last ? before / kSlice : 0;
    }
    unsignalled = -1;
  }

  // Returns for the slices of the tiles that this warpgroup contributed to. Everything is multiplied, so the ring of
  // stages holds the others' parts. Calls begin(m0) for each tile, then store(unit, sums of four tokens, row, token,
  // n0, m0): row of the strip, and the first of four tokens, two apart.
  template <class Tiles, class Begin, class Store>
  TW_MEMBER void combine(const Tiles& tiles, u8* ring, int thread, const Begin& begin, const Store& store) {
    static_assert(kPartsLimit > 2, "the ring holds a unit of at least three parts");
    thread = opaque(thread);
    signal(tiles, thread);
    sync(thread);  // pieces are returned to by different threads, none before its part was counted
    int piece = 0;
    pieces(tiles, [&](u32 tile, u32 first_stage) {
      if (thread % 128 == 32 * piece++)
        return_to(contributors_of(tiles, tile), word(tile, thread), slices(first_stage, thread));
    });
    sync_named(8, 128 * GROUPS);  // the other warpgroups no longer read the ring
    u8* buffer = ring + thread / 128 * kBufferUnits * kUnitBytes;
    u32 phase = 0;
    pieces(tiles, [&](u32 tile, u32 first_stage) {
      const Contributors contributors = contributors_of(tiles, tile);
      const int count = static_cast<int>(contributors.count), at_once = kBufferUnits / count;
      i64 n0, m0;
      tiles.locate(tiles.whole + tile, tiles.own_rank(), n0, m0);
      const u32 mine = slices(first_stage, thread);
      begin(m0);
      TW_NO_UNROLL for (int slice = 0; slice < count; ++slice) {
        if ((mine >> slice & 1u) == 0) continue;
        const int end = (slice + 1) * kUnits / count;
        TW_NO_UNROLL for (int unit = slice * kUnits / count; unit < end; unit += at_once) {
          const int units = min2(at_once, end - unit);
          if (thread % 128 == 0) fetch(contributors, tile, unit, units, buffer, thread);
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
  TW_MEMBER static void return_to(const Contributors& contributors, u32* word, u32& slices) {
    const u32 own = own_cluster() - contributors.first;
    TW_NO_UNROLL for (int i = 0; i < kPolls && load_relaxed(word) % kReturned != contributors.count; ++i) pause();
    const u32 before = add_global<false>(word, kReturned + (kSlice << own));
    if (before % kReturned == contributors.count) slices |= 1u << own;
    if (before / kReturned % 256 + 1 == contributors.count) store_relaxed(word, 0);
  }
  // Fetches these units of all parts, part by part.
  TW_MEMBER void fetch(const Contributors& contributors, u32 tile, int unit, int units, u8* buffer, int thread) const {
    const u32 bytes = static_cast<u32>(units * kUnitBytes);
    u64* barrier = arrived + thread / 128;
    fence_async_global();
    barrier_expect(barrier, bytes * contributors.count);
    TW_NO_UNROLL for (u32 c = 0; c < contributors.count; ++c) bulk_load(
        buffer + c * bytes, sums_of(contributors.first + c, tile, thread) + unit * 512, bytes, barrier, kEvictFirst);
  }
  // A thread reads what four threads held in one register: one row's sums of four tokens. A warp covers 32 rows of
  // each, so that it stores whole sectors.
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

// Stream-K for few tokens: a block's threads have added their sums of BM tokens by BN rows. The block that writes the
// last part of a tile adds all of them when its own work is done.
template <class Sum, int BM, int BN>
struct StreamKBlock {
  TW_CONSTANTS(i64, kSlotBytes = stream_k_slot_bytes(1, BM, BN), kMostTiles = kTileWordBytes / 4);
  TW_CONSTANTS(int, kPartsLimit = kMaxParts);
  TW_CONSTANTS(u32, kAtOnce = 4);  // parts of a sum, whose loads wait together

  u8* workspace;
  i64 slots_at;       // bytes from there
  int count = 0;      // parts written: at most the end of one tile and the start of another
  bool last[2] = {};  // thread 0: this block's part was the tile's last

  TW_MEMBER static i64 slots(const Shape& shape, i64 slots_at) {
    return shape.workspace < slots_at ? 0 : min2((shape.workspace - slots_at) / kSlotBytes, kMostTiles);
  }
  TW_MEMBER Sum* sums_of(u32 block, u32 tile) const {
    return reinterpret_cast<Sum*>(workspace + slots_at + (block + tile) * kSlotBytes);
  }
  // Counts a part that all `threads` of the block have written.
  template <class Tiles>
  TW_MEMBER void signal(const Tiles& tiles, u32 tile, int thread, int threads) {
    sync_named(8, static_cast<u32>(threads));
    if (thread == 0) {
      u32* word = reinterpret_cast<u32*>(workspace) + tile;
      const bool all = add_global<true>(word, 1) + 1 == contributors_of(tiles, tile).count;
      if (all) store_relaxed(word, 0);
      last[count > 0] = all;
    }
    ++count;
  }
  // Calls store(at, sum, n0, m0) for the tiles that this block completes. `flags`: two words of shared memory.
  template <class Tiles, class Store>
  TW_MEMBER void combine(const Tiles& tiles, i64 m, u32* flags, int thread, int threads, const Store& store) const {
    if (count == 0) return;
    sync_named(8, static_cast<u32>(threads));
    if (thread == 0) flags[0] = last[0], flags[1] = last[1];
    sync_named(8, static_cast<u32>(threads));
    auto share = tiles.share_of(block_x());
    TW_NO_UNROLL for (int piece = 0; share.left > 0;) {
      const u32 tile = share.tile;
      if (tiles.take(share) == tiles.stages || flags[piece++] == 0) continue;
      const Contributors contributors = contributors_of(tiles, tile);
      i64 n0, m0;
      tiles.locate(tiles.whole + tile, 0, n0, m0);
      const int sums = static_cast<int>(min2(i64{BM}, m - m0)) * BN;
      for (int at = thread; at < sums; at += threads) {
        Sum sum = 0;
        for (u32 first = 0; first < contributors.count; first += kAtOnce) {
          Sum part[kAtOnce] = {};
          TW_UNROLL for (u32 c = 0; c < kAtOnce; ++c) if (first + c < contributors.count) part[c] =
              sums_of(contributors.first + first + c, tile)[at];
          TW_UNROLL for (u32 c = 0; c < kAtOnce; ++c) sum += part[c];
        }
        store(at, sum, n0, m0);
      }
    }
  }
};

}  // namespace tw::gemm
