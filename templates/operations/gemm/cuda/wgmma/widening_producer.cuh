// SPDX-License-Identifier: Apache-2.0
// The producer where w's tiles are for 16-bit floats and x is E4M3, which they hold: the copy engine brings x as it is
// stored, and the producer's threads write it into the ring as swizzled rows of those floats. What math threads see is
// a stage of a 16-bit x, so they need to know nothing of it.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "operations/gemm/cuda/wgmma/producer.cuh"

namespace tw::gemm {

template <class T>
struct WideningProducer : Producer<T> {
  using Base = Producer<T>;
  using Weights = typename Base::Weights;
  using Ring = typename Base::Ring;
  using Tiles = typename Base::Tiles;
  TW_CONSTANTS(int, kBlockM = Base::kBlockM, kPanels = Base::kPanels, kStages = Base::kStages);
  TW_CONSTANTS(bool, kQueue = Base::kQueue);
  TW_CONSTANTS(int, kThreads = T::kThreads - T::kMathThreads, kRawBytes = T::kPlan.raw_bytes);
  TW_CONSTANTS(u32, kBarrier = 9);
  TW_CONSTANTS(int, kArrivals = 2);  // at a full stage: its weights, which are copied, and its x, which is written

  u8* raw;        // kRawStages stages of x as it is stored: for each panel the rows of a tile
  u64* raw_full;  // a barrier for each

  // Copies of x, which run kRawStages ahead of what is widened, into the next tile too unless tiles are queued: their
  // next one is not known yet. One thread's.
  struct Ahead {
    Tiles tiles;
    u32 kb = 0, end = 0;
    i64 m0 = 0;
    TW_MEMBER void start(const WideningProducer& p, const Tiles& of, i64 token) {
      const TileGemm<T> gemm(p.args, p.shape, of);
      kb = of.k_begin, end = of.k_end, m0 = T::first_token(gemm.args, token) + gemm.first_x;
    }
    TW_MEMBER void fetch(const WideningProducer& p, int slot) {
      if constexpr (!kQueue)
        for (i64 n0, token; kb == end && tiles.next(n0, token);) start(p, tiles, token);
      if (kb == end) return;
      barrier_expect(p.raw_full + slot, kPanels * kBlockM * T::operands().x_raw_bytes);
      tensor_load(p.raw + slot * kRawBytes, p.x_map, PanelPlace{static_cast<i32>(m0), static_cast<i32>(kb * kPanels)},
                  p.raw_full + slot, kEvictNormal);
      ++kb;
    }
  };

  // early: stages whose weights are loaded, for the first thread.
  TW_MEMBER void run(Ring ring, Tiles tiles, int early, int thread) const {
    const bool leader = thread == 0;
    if (leader && T::kSmallTile && this->shape.constant_weights) launch_dependent_grids();
    Ahead ahead{tiles};
    if (leader) {
      if constexpr (!kQueue) fetch_first(ahead);
      early = load_first(ring, tiles, early);
    }
    const u64 w_policy = Base::weight_policy(tiles);
    int slot = 0;
    u32 raw_phase = 0;
    ring.phase = 1;  // all stages are empty
    i64 n0, m0;
    while (next(tiles, n0, m0, leader)) {
      if (kQueue && leader) ahead.start(*this, tiles, m0), fetch_first(ahead, slot);
      const TileGemm<T> gemm(this->args, this->shape, tiles);
      n0 = T::first_row(gemm.shape, n0) + gemm.first_w;
      for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
        u64* full = ring.full + ring.stage;
        if (kQueue && leader && kb + 1 == tiles.k_end) tiles.request(static_cast<u32*>(this->args.workspace));
        ring.await_empty();
        if (leader && early > 0) {
          --early;
        } else if (leader) {
          if (kQueue && kb == tiles.k_begin) ring.tiles[ring.stage] = tiles.place;
          load_weights(ring, gemm, n0, kb, T::kGroups > 0 ? Base::weight_policy(tiles) : w_policy);
        }
        barrier_wait(raw_full + slot, raw_phase);
        widen(raw + slot * kRawBytes, ring.x(), thread);
        if constexpr (!T::kWarpMma) fence_async();  // warps read it by ordinary loads
        sync();
        if (leader) {
          barrier_arrive(full);
          ahead.fetch(*this, slot);
        }
        if (++slot == kRawStages) slot = 0, raw_phase ^= 1u;
        ring.advance();
      }
    }
    if (!leader) return;
    launch_dependent_grids();      // late: the next kernel would compete for memory bandwidth
    if (kQueue && !tiles.first) {  // a stage without data, which says that there is no further tile
      ring.await_empty();
      ring.tiles[ring.stage] = tiles.place;
      TW_UNROLL for (int i = 0; i < kArrivals; ++i) barrier_arrive(ring.full + ring.stage);
    }
  }

 private:
  TW_MEMBER static void sync() {
    if constexpr (kThreads == 32)
      sync_warp();
    else
      sync_named(kBarrier, kThreads);
  }

  // The next tile. One thread takes those that are queued; the others learn from it that there is one.
  TW_MEMBER bool next(Tiles& tiles, i64& n0, i64& m0, bool leader) const {
    if constexpr (kQueue) {
      static_assert(kThreads == 32, "tiles are queued for single warps");
      i32 more = 0;
      if (leader) more = tiles.take(static_cast<u32*>(this->args.workspace), n0, m0);
      return sum_lanes<32>(more) != 0;
    } else {
      return tiles.next(n0, m0);
    }
  }

  TW_MEMBER void fetch_first(Ahead& ahead, int slot = 0) const {
    TW_UNROLL for (int i = 0; i < kRawStages; ++i) ahead.fetch(*this, (slot + i) % kRawStages);
  }
  TW_MEMBER void load_weights(const Ring& ring, const TileGemm<T>& gemm, i64 n0, u32 kb, u64 policy) const {
    barrier_expect(ring.full + ring.stage, this->bytes(n0, kb));
    Weights::load(ring.w(), gemm.args, gemm.shape, nullptr, n0, kb, ring.full + ring.stage, policy);
  }
  // Fills the ring, which is empty, with the first tile's weights from stage `early` on, so that they do not wait for
  // x. Returns how many stages have them.
  TW_MEMBER int load_first(Ring ring, Tiles tiles, int early) const {
    i64 n0, m0;
    if (!tiles.next(n0, m0)) return 0;
    const TileGemm<T> gemm(this->args, this->shape, tiles);
    n0 = T::first_row(gemm.shape, n0) + gemm.first_w;
    const u32 end = min2(tiles.k_end, tiles.k_begin + kStages);
    ring.stage = early;
    TW_NO_UNROLL for (u32 kb = tiles.k_begin + static_cast<u32>(early); kb < end; ++kb, ring.advance())
        load_weights(ring, gemm, n0, kb, Base::weight_policy(tiles));
    return static_cast<int>(end - tiles.k_begin);
  }

  // Sixteen elements at a time: a row's panel is four such units of x as it is stored, 64 bytes, and eight chunks of
  // the ring. Neighbouring threads have neighbouring units, whose chunks the swizzle spreads over all banks.
  TW_MEMBER static void widen(const u8* from, u8* to, int thread) {
    using Element = typename T::Element;
    constexpr int kUnits = 4 * kPanels * kBlockM;
    static_assert(kThreads / 4 % 8 == 0, "a thread's rows are swizzled alike");
    const int row = thread / 4, first = thread % 4 * 2, at = kBlockM == 1 ? first : first ^ (row % 8);
    from += 16 * thread, to += row * kPanelBytes;
    TW_UNROLL_BY(4) for (int i = 0; i < ceil_div(kUnits, kThreads); ++i) {
      if (kUnits % kThreads != 0 && i * kThreads + thread >= kUnits) break;
      const u32x4 q = *reinterpret_cast<const u32x4*>(from + i * (16 * kThreads));
      u8* const rows = to + i * (kThreads / 4 * kPanelBytes);
      *reinterpret_cast<u32x4*>(rows + 16 * at) = {
          widen_fp8x2<Element, e4m3>(q.x, 0), widen_fp8x2<Element, e4m3>(q.x, 1), widen_fp8x2<Element, e4m3>(q.y, 0),
          widen_fp8x2<Element, e4m3>(q.y, 1)};
      *reinterpret_cast<u32x4*>(rows + 16 * (at ^ 1)) = {
          widen_fp8x2<Element, e4m3>(q.z, 0), widen_fp8x2<Element, e4m3>(q.z, 1), widen_fp8x2<Element, e4m3>(q.w, 0),
          widen_fp8x2<Element, e4m3>(q.w, 1)};
    }
  }
};

}  // namespace tw::gemm
