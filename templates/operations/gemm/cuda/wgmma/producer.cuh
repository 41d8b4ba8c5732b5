// SPDX-License-Identifier: Apache-2.0
// The producer: one thread, which fills the ring through the copy engine (TMA), stage by stage, and runs ahead into the
// next tile while the last one is stored.
#pragma once
#include "operations/gemm/cuda/wgmma/traits.cuh"

namespace tw::gemm {

template <class T>
struct Producer {
  using Weights = typename T::Weights;
  using Ring = typename T::Ring;
  using Tiles = typename T::Tiles;
  TW_CONSTANTS(int, kBlockM = T::kBlockM, kPanels = T::kPanels, kStages = T::kStages, kMulticast = T::kMulticast,
               kPanelsPerBox = T::kPanelsPerBox, kRowBytes = T::kRowBytes);
  TW_CONSTANTS(bool, kSmallTile = T::kSmallTile, kQueue = T::schedule() == Schedule::queue);
  TW_CONSTANTS(bool, kLoadsEarly = kSmallTile || T::kPrologue);  // the first weights

  const Args& args;
  const Shape& shape;
  const TensorMap* x_map;
  const TensorMap* w_map;

  // Before the previous kernel has ended: the first stages of the first tile's weights are prefetched into L2, or, if
  // weights are constant and tokens few or x not there yet, loaded into the ring. Returns how many stages have their
  // weights.
  TW_MEMBER int load_early(Ring ring, Tiles tiles) const {
    i64 n0, m0;
    // (Of groups, which tile comes first is not known yet.)
    if (T::kGroups > 0 || T::kSwapped || (T::kGathers && !Weights::kRegisters) || !tiles.next(n0, m0)) return 0;
    const bool into_ring = kLoadsEarly && !T::kGathers && shape.constant_weights;
    // If a launch has one tile per block only, what the previous kernel still loads comes first: then two thirds of the
    // ring, or eight panels with more than eight tokens, which keep that kernel busy for longer
    // (bench/LOG.md).
    constexpr int kFewStages = T::kWarpMma && kBlockM > 8 ? min2(max2(1, 8 / kPanels), kStages) : (2 * kStages + 1) / 3;
    const u32 stages = into_ring && tiles.whole <= tiles.clusters ? kFewStages : kStages;
    const u32 end = min2(tiles.k_end, tiles.k_begin + stages);
    n0 = T::first_row(shape, n0);
    TW_NO_UNROLL for (u32 kb = tiles.k_begin; kb < end; ++kb) {
      if (!into_ring) {
        Weights::prefetch(args, shape, w_map, n0, kb);
        continue;
      }
      barrier_expect(ring.full + ring.stage, bytes(n0, kb));
      Weights::load(ring.w(), args, shape, w_map, n0, kb, ring.full + ring.stage, weight_policy(tiles));
      ring.advance();
    }
    return into_ring ? static_cast<int>(end - tiles.k_begin) : 0;
  }

  // early: stages whose weights are loaded.
  TW_MEMBER void run(Ring ring, Tiles tiles, int early) const {
    if (kSmallTile && shape.constant_weights) launch_dependent_grids();
    const u32 rank = kMulticast > 1 ? cluster_rank() : 0;
    const u64 w_policy = weight_policy(tiles);
    ring.phase = ring.boxes.phase = 1;  // all stages are empty
    if constexpr (T::kResident) load_resident(ring, rank);
    i64 n0, m0;
    while (kQueue ? tiles.take(static_cast<u32*>(args.workspace), n0, m0) : tiles.next(n0, m0)) {
      // Blocks that split a tile have the same tokens, but different stages: nothing to multicast.
      const bool alone = T::schedule() == Schedule::split_last_wave && tiles.part;
      const TileGemm<T> gemm(args, shape, tiles);
      n0 = T::first_row(gemm.shape, n0) + gemm.first_w, m0 = T::first_token(gemm.args, m0) + gemm.first_x;
      if constexpr (T::kGathers)
        gather(ring, tiles, n0, m0, rank);
      else
        for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
          u64* full = ring.full + ring.stage;
          if (kQueue && kb + 1 == tiles.k_end) tiles.request(static_cast<u32*>(args.workspace));
          const bool loads_weights = !kLoadsEarly || early == 0;
          if (!loads_weights) {
            --early;
          } else {
            ring.await_empty();
            if (kQueue && kb == tiles.k_begin) ring.tiles[ring.stage] = tiles.place;
            barrier_expect(full, bytes(n0, kb));
          }
          load_x(ring, full, m0, kb, rank, alone);
          if (loads_weights)
            Weights::load(ring.w(), gemm.args, gemm.shape, w_map, n0, kb, full,
                          T::kGroups > 0 ? weight_policy(tiles) : w_policy);
          ring.advance();
        }
    }
    if constexpr (T::kResident) {  // also what no tile has read
      TW_NO_UNROLL for (int i = 0; i < kStages; ++i) barrier_wait(ring.full + i, 0);
    }
    launch_dependent_grids();      // late: the next kernel would compete for memory bandwidth
    if (kQueue && !tiles.first) {  // a stage without data, which says that there is no further tile
      ring.await_empty();
      ring.tiles[ring.stage] = tiles.place;
      barrier_arrive(ring.full + ring.stage);
    }
    // A block must not exit while copies or arrivals of its neighbours are still on their way to it.
    if constexpr (kMulticast > 1) {
      TW_NO_UNROLL for (int i = 0; i < kStages; ++i) {
        ring.await_empty();
        ring.advance();
      }
      TW_NO_UNROLL for (int i = 0; i < T::kBoxes; ++i) {
        ring.boxes.await_empty();
        ring.boxes.advance();
      }
    }
  }

  // Rows of each box of x.
  TW_MEMBER int box_rows() const {
    if constexpr (!T::kClips || T::kSwapped) return T::kBoxRows;
    // Computed again for each stage: the producer has few registers.
    return clipped_rows(opaque(args.m), T::kBoxRows, kMulticast);
  }
  // Bytes of a stage that are copied.
  TW_MEMBER u32 bytes(i64 n0, u32 kb) const {
    constexpr bool kCopied = !T::kQuantizes && !T::kWidens;
    const u32 x = kCopied ? static_cast<u32>(kPanels / kPanelsPerBox * kMulticast * kRowBytes * box_rows()) : 0;
    return x + Weights::bytes(shape, n0, kb);
  }
  // Weights that no other tile reads are the first to be evicted from L2.
  TW_MEMBER static u64 weight_policy(const Tiles& tiles) { return tiles.m_tiles == 1 ? kEvictFirst : kEvictNormal; }

 private:
  TW_MEMBER void gather(Ring& ring, const Tiles& tiles, i64 n0, i64 m0, u32 rank) const {
    typename T::XRows::template Loader<T> loader(shape, T::kSwapped ? n0 : m0, T::kSwapped ? m0 : n0, tiles.k_begin);
    TW_NO_UNROLL for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      if constexpr (T::kBoxes > 0) {
        ring.boxes.await_empty();
        u64* full = ring.boxes.full + ring.boxes.box;
        barrier_expect(full, T::kBoxBytes);
        loader.load_x(ring.boxes.x(), full, rank);
        ring.boxes.advance();
      }
      TW_NO_UNROLL for (int panel = 0; panel < (T::kResident ? 0 : T::kBoxes ? kPanels : 1); ++panel) {
        u64* full = ring.full + ring.stage;
        ring.await_empty();
        barrier_expect(full, Weights::kRegisters ? bytes(n0, kb) : static_cast<u32>(T::kStageBytes));
        if constexpr (T::kBoxes == 0) loader.load_x(T::kSwapped ? ring.w() : ring.x(), full, rank);
        if constexpr (Weights::kRegisters)
          Weights::load(ring.w(), args, shape, nullptr, n0, kb, full, kEvictNormal);
        else
          loader.load_w(T::kSwapped ? ring.x() : ring.w(), panel, full, rank);
        ring.advance();
      }
      loader.advance();
    }
  }
  // All of w, whose rows one tile has.
  TW_MEMBER void load_resident(Ring ring, u32 rank) const {
    typename T::XRows::template Loader<T> loader(shape, 0, 0, 0);
    TW_NO_UNROLL for (int kb = 0; kb < kStages / kPanels; ++kb) {
      TW_NO_UNROLL for (int panel = 0; panel < kPanels; ++panel) {
        barrier_expect(ring.full + ring.stage, T::kStageBytes);
        loader.load_w(T::kSwapped ? ring.x() : ring.w(), panel, ring.full + ring.stage, rank);
        ring.advance();
      }
      loader.advance();
    }
  }
  TW_MEMBER void load_x(const Ring& ring, u64* full, i64 m0, u32 kb, u32 rank, bool alone) const {
    const i32 panel = static_cast<i32>(kb * (kPanels / kPanelsPerBox));
    if constexpr (T::kQuantizes) {
      // Math threads read and quantize x themselves.
    } else if constexpr (kMulticast > 1) {
      // Each block loads its rows of each panel for all. Boxes are whole panels, so several panels are several copies.
      const int rows = box_rows();
      if (alone) {
        TW_NO_UNROLL for (int i = 0; i < kPanels / kPanelsPerBox * kMulticast; ++i) tensor_load(
            ring.x() + (i / kMulticast * kBlockM + i % kMulticast * rows) * kRowBytes, x_map,
            PanelPlace{static_cast<i32>(m0 + i % kMulticast * rows), panel + i / kMulticast}, full, kEvictNormal);
      } else {
        const int first = static_cast<int>(rank) * rows;
        TW_UNROLL for (int p = 0; p < kPanels / kPanelsPerBox; ++p) tensor_load_multicast(
            ring.x() + (p * kBlockM + first) * kRowBytes, x_map, PanelPlace{static_cast<i32>(m0 + first), panel + p},
            full, (1u << kMulticast) - 1, kEvictNormal);
      }
    } else if (T::kClips && T::kPanelBoxes > 1 && box_rows() < kBlockM) {
      // One box would leave the panels' rows closer to each other than they are read.
      TW_NO_UNROLL for (int p = 0; p < T::kPanelBoxes; ++p) tensor_load(
          ring.x() + p * kBlockM * kRowBytes, x_map, PanelPlace{static_cast<i32>(m0), panel + p}, full, kEvictNormal);
    } else {
      tensor_load(ring.x(), x_map, PanelPlace{static_cast<i32>(m0), panel}, full, kEvictNormal);
    }
  }
};

}  // namespace tw::gemm
