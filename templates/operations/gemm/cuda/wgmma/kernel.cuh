// SPDX-License-Identifier: Apache-2.0
// The kernel for Hopper's warpgroup matrix instructions. Weights are the instruction's 64-row side and tokens its
// columns, so that one text serves one token as well as thousands, and weights may come from registers, where coded
// ones are unpacked.
//
// One producer thread fills a ring of stages through the copy engine; math warpgroups, each with 64 `strips` rows of w,
// share a stage's tokens. Blocks are persistent: the producer runs ahead into the next tile while the last one is
// stored. Within a cluster, blocks either share tokens (split_k == 1: neighbours along n, each loads its part of x for
// all) or split k and add their sums through distributed shared memory, in a fixed order.
//
//   plan.cuh            knobs, shared memory          multiply/  stages to sums
//   producer.cuh        global memory to the ring     store/     sums to y
//   widening_producer.cuh  the same, where x becomes wider on the way
//   prologue.cuh        x to the workspace, before all that
//   gathered_rows.cuh   x whose rows are not those of a matrix
//   tile_scheduler.cuh  which tiles, and which stages of them; stream_k.cuh: sums that meet in the workspace;
//                       grouped_tiles.cuh: of several gemms
#pragma once
#include "operations/gemm/cuda/wgmma/multiply/multiply.cuh"
#include "operations/gemm/cuda/wgmma/producer.cuh"
#include "operations/gemm/cuda/wgmma/store/async.cuh"
#include "operations/gemm/cuda/wgmma/store/last_wave.cuh"
#include "operations/gemm/cuda/wgmma/store/parts.cuh"
#include "operations/gemm/cuda/wgmma/store/swapped.cuh"
#include "operations/gemm/cuda/wgmma/store/tile.cuh"
#include "operations/gemm/cuda/wgmma/store/transposed.cuh"
#include "operations/gemm/cuda/wgmma/traits.cuh"
#include "operations/gemm/cuda/wgmma/widening_producer.cuh"

namespace tw::gemm {

template <class Input, class W, class Epi, const WgmmaKnobs& knobs, class XRows = MatrixRows>
struct WgmmaKernel : WgmmaTraits<Input, W, Epi, knobs, XRows> {
  using T = WgmmaTraits<Input, W, Epi, knobs, XRows>;
  using X = typename T::X;
  using Sum = typename T::Sum;
  using Sums = typename T::Sums;
  using Scales = typename T::Scales;
  using Ring = typename T::Ring;
  using Tiles = typename T::Tiles;
  using Parts = typename T::Parts;
  using Items = TileItems<T>;
  TW_CONSTANTS(int, kMathThreads = T::kMathThreads, kStages = T::kStages, kWarpgroupsN = T::kWarpgroupsN);
  TW_CONSTANTS(bool, kGrouped = T::kGroups > 0);
  TW_CONSTANTS(bool, kStreamK = T::schedule() == Schedule::stream_k, kQueue = T::schedule() == Schedule::queue,
               kSplitLastWave = T::schedule() == Schedule::split_last_wave);

  // x_map: null if a block quantizes x; w_map: plain weights only. Swapped: from here on x is called w, and w x.
  // ShapeOf: Shape, or what XRows takes, which is one.
  template <class ShapeOf>
  TW_MEMBER static void run(const Args& args, const ShapeOf& shape, const TensorMap* x_map = nullptr,
                            const TensorMap* w_map = nullptr) {
    if constexpr (T::kSwapped) {
      ShapeOf swapped = shape;
      swapped.n = args.m;
      run_block(scaled({args.w, args.x, args.y, args.bias, shape.n, args.ldx, args.ldy, args.c, args.ldc,
                        args.workspace, args.alpha, args.beta, args.group_rows},
                       swapped),
                swapped, x_map, w_map);
    } else if constexpr (T::kScalesX) {
      run_block(scaled(args, shape), shape, x_map, w_map);
    } else {
      run_block(args, shape, x_map, w_map);
    }
  }

 private:
  // Scales that a prologue writes are those of x.
  TW_MEMBER static Args scaled(Args args, const Shape& shape) {
    if constexpr (T::kScalesX) (T::kSwapped ? args.w : args.x).scales = T::prologue(args, shape).scales();
    return args;
  }

  // The block's shared memory beside the ring. Its barriers' meaning depends on the schedule and on how tiles are
  // stored.
  struct Shared {
    u8* base;
    fmt::row_item<X>* items;
    Ring ring;
    u64* raw_full;  // of the stages of x that is widened
    u64* extra;     // barriers behind these

    TW_MEMBER Shared(u8* memory)
        : base(memory),
          items(reinterpret_cast<fmt::row_item<X>*>(memory + T::kPlan.items_at)),
          ring{memory, reinterpret_cast<u64*>(memory + T::kPlan.barriers_at), nullptr} {
      ring.empty = ring.full + kStages;
      raw_full = ring.empty + kStages;
      extra = raw_full + (T::kWidens ? kRawStages : 0);
      if constexpr (T::kBoxes > 0) {
        ring.boxes = {memory + T::kPlan.box_at, extra, extra + T::kBoxes};
        extra += 2 * T::kBoxes;
      }
      if constexpr (kQueue) ring.tiles = reinterpret_cast<u32*>(memory + T::kPlan.groups_at) - kStages;
    }
    TW_MEMBER u8* raw() const { return base + T::kPlan.raw_at; }
    TW_MEMBER u8* staging() const { return base + T::kPlan.staging_at; }
    TW_MEMBER u8* row() const { return base + T::kPlan.row_at; }
    TW_MEMBER typename StoreParts<T>::Exchange exchange() const {
      return {reinterpret_cast<float*>(staging()), extra, 0, 0};
    }
    TW_MEMBER AsyncStore<T> async_store() const { return {staging(), extra, extra + kWarpgroupsN}; }
    TW_MEMBER GroupTiles* groups() const { return reinterpret_cast<GroupTiles*>(base + T::kPlan.groups_at); }
    // split_last_wave: the neighbour has finished multiplying; its sums have arrived.
    TW_MEMBER u64* neighbour_done() const { return extra; }
    TW_MEMBER u64* sums_arrived() const { return extra + 1; }
    TW_MEMBER fmt::row_item<X>* own_items(int thread) const { return items + thread / 128 * T::kColumns; }
  };

  TW_MEMBER static void init_barriers(const Shared& shared) {
    TW_NO_UNROLL for (int i = 0; i < kStages; ++i) {
      barrier_init(shared.ring.full + i, T::kWidens ? WideningProducer<T>::kArrivals : 1);
      barrier_init(shared.ring.empty + i, kMathThreads / 32 * T::kRingMulticast);
    }
    for (int i = 0; i < T::kBoxes; ++i) {
      barrier_init(shared.ring.boxes.full + i, 1);
      barrier_init(shared.ring.boxes.empty + i, kMathThreads / 32 * T::kBoxMulticast);
    }
    if constexpr (T::kWidens)
      for (int i = 0; i < kRawStages; ++i) barrier_init(shared.raw_full + i, 1);
    if constexpr (T::kParts > 1) {
      barrier_init(shared.extra, 1);
      barrier_init(shared.extra + 1, 1);
    }
    if constexpr (kSplitLastWave) {
      barrier_init(shared.neighbour_done(), kMathThreads / 32);
      barrier_init(shared.sums_arrived(), 1);
    }
    if constexpr (kStreamK && T::kParts == 1)
      for (int i = 0; i < kWarpgroupsN; ++i) barrier_init(shared.extra + i, 1);
    if constexpr (T::kAsyncStore) {
      const AsyncStore<T> store = shared.async_store();
      for (int i = 0; i < kWarpgroupsN; ++i)
        barrier_init(store.full + i, 4), barrier_init(store.empty + i, AsyncStore<T>::kStoreWarps);
    }
    barrier_init_fence();
  }

  TW_MEMBER static void run_block(const Args& args, const Shape& shape, const TensorMap* x_map,
                                  const TensorMap* w_map) {
    const Shared shared(dynamic_shared());
    const int thread = static_cast<int>(thread_x());
    if (thread == 0) {
      init_barriers(shared);
      if (!T::kQuantizes) prefetch_map(x_map);
      if (!T::Weights::kRegisters) prefetch_map(w_map);
    }
    if constexpr (T::kCluster > 1)
      sync_cluster();
    else
      sync_block();
    const Tiles tiles = first_tiles(args, shape, shared);
    const Producer<T> producer{args, shape, x_map, w_map};
    const int early = thread == kMathThreads ? producer.load_early(shared.ring, tiles) : 0;
    wait_prerequisite_grids();
    if constexpr (T::kPrologue)
      T::prologue(args, shape)
          .run(*reinterpret_cast<typename T::WritesX::Shared*>(shared.base + T::kPlan.prologue_at), grid_x(), thread);
    if constexpr (T::kGathers) T::XRows::template write_ahead<T>(shape, shared.base, thread);
    if constexpr (kGrouped) {
      if (thread < 32) tiles.fill(shared.groups(), args.group_rows, shape, T::kSwapped ? shape.n : args.m, thread);
      sync_block();
    }

    if (thread >= kMathThreads) {
      if constexpr (T::kReallocatesRegisters) give_registers<T::kProducerRegisters>();
      if constexpr (T::kWidens)
        WideningProducer<T>{producer, shared.raw(), shared.raw_full}.run(shared.ring, tiles, early,
                                                                         thread - kMathThreads);
      else if (thread == kMathThreads)
        producer.run(shared.ring, tiles, early);
      if constexpr (T::kAsyncStore) {
        if (thread >= kMathThreads + 32)
          shared.async_store().run(args, shape, tiles, (thread - kMathThreads) / 32 - 1, thread % 32);
      }
    } else {
      if constexpr (T::kReallocatesRegisters) take_registers<T::kMathRegisters>();
      // The first warpgroup is the first to multiply.
      if (MultiplyShared<T>::kPingPong && thread / 128 == kWarpgroupsN * T::kWarpgroupsK - 1)
        MultiplyShared<T>::pass_tensor_cores({thread, thread % 32, kWarpgroupsN - 1, T::kWarpgroupsK - 1});
      if constexpr (T::kParts > 1)
        compute_parts(args, shape, shared, shared.ring, tiles, thread);
      else
        compute_tiles(args, shape, shared, shared.ring, tiles, thread);
    }
  }

  TW_MEMBER static Tiles first_tiles(const Args& args, const Shape& shape, const Shared& shared) {
    if constexpr (kGrouped)
      return Tiles(args, shape, shared.groups());
    else if constexpr (kStreamK)
      return Tiles(args, shape, Parts::slots(shape, T::slots_at(args, shape)), Parts::kPartsLimit);
    else
      return Tiles(args, shape);
  }

  // The next tile, for math threads. Its number comes with its first stage if tiles are queued.
  TW_MEMBER static bool next(Tiles& tiles, const Ring& ring, i64& n0, i64& m0) {
    if constexpr (kQueue) {
      if (!tiles.first) {
        ring.await_full();
        tiles.place = ring.tiles[ring.stage];
      }
      tiles.first = false;
      return tiles.locate(tiles.place, n0, m0);
    } else {
      return tiles.next(n0, m0);
    }
  }

  // The tile's gemm, read again: if it were kept, it would take registers while the products are made.
  TW_MEMBER static TileGemm<T> gemm_again(const Args& args, const Shape& shape, Tiles& tiles) {
    if constexpr (kGrouped) tiles.group = static_cast<u32>(opaque(static_cast<int>(tiles.group)));
    return TileGemm<T>(args, shape, tiles);
  }

  TW_MEMBER static Scales block_scales(const Args& args, const Shape& shape, i64 n0, i64 m0, int thread) {
    const i64 ldx = args.ldx ? args.ldx : shape.k;
    return {{args.x.scales, args.m, T::kSwapped ? shape.k : ldx, m0},
            {args.w.scales, shape.n, T::kSwapped ? ldx : shape.k, n0},
            shape.k,
            2 * (thread % 4),
            Items::row_of(thread, 0, 0)};
  }

  // The row of x that a block quantizes, for a token that it has not had yet.
  struct QuantizedRow {
    i64 m = -1;
    TW_MEMBER void fill(const Args& args, const Shape& shape, const Shared& shared, const Ring& ring,
                        const Tiles& tiles, i64 m0, int thread) {
      if (m == m0) return;
      const u32 row_end = T::kSplitK > 1 ? tiles.k_end : static_cast<u32>(ceil_div64(shape.k, T::kBlockK));
      if (m >= 0) sync_named(8, kMathThreads);  // all have read the previous one
      T::Input::template fill<kMathThreads>(shared.row(), args, shape, m0, i64{ring.row_begin} * T::kBlockK,
                                            min2(i64{row_end} * T::kBlockK, shape.k), thread);
      sync_named(8, kMathThreads);
      m = m0;
    }
  };

  // Math warpgroups that have sums over all of k: of whole tiles, or of the parts that a schedule gives to a cluster.
  TW_MEMBER static void compute_tiles(const Args& args, const Shape& shape, const Shared& shared, Ring ring,
                                      Tiles tiles, int thread) {
    AsyncStore<T> store = shared.async_store();
    Parts parts{static_cast<u8*>(args.workspace), kStreamK ? T::slots_at(args, shape) : 0, shared.extra};
    QuantizedRow row;
    if constexpr (T::kQuantizes) ring.row = shared.row(), ring.row_begin = T::kSplitK > 1 ? tiles.k_begin : 0;
    i64 n0, m0;
    while (next(tiles, ring, n0, m0)) {
      if constexpr (T::kQuantizes) row.fill(args, shape, shared, ring, tiles, m0, thread);
      [[maybe_unused]] const bool completes =
          !tiles.part || (kSplitLastWave && static_cast<u32>(thread) / 128 == cluster_rank());
      if (kSplitLastWave && tiles.skip) {  // a stage that the other block multiplies
        ring.await_full();
        ring.release(ring.stage, thread % 32);
        ring.advance(), ++tiles.k_begin;
      }
      Sums sums;
      const TileGemm<T> gemm(args, shape, tiles);
      const Scales scales = block_scales(gemm.args, gemm.shape, n0, m0, thread);
      const i64 row0 = T::first_row(gemm.shape, n0), token0 = T::first_token(gemm.args, m0);
      if constexpr (T::kSwapped) {
        multiply<T>(ring, tiles, scales, sums, thread);
        const TileGemm<T> own = gemm_again(args, shape, tiles);
        store.place(thread, [&](u8* to) {
          if constexpr (T::kTransposed)
            StoreTransposed<T>::store_swapped(own.args, own.shape, to, sums, typename T::XRows::Tile(own.shape, row0),
                                              token0, thread);
          else
            StoreSwapped<T>::store(own.args, own.shape, to, sums, row0, token0, n0, m0, thread);
        });
      } else {
        // What the epilogue reads is requested before the products where registers allow, to hide its latency.
        // Warpgroups do not wait for each other: while one stores, another has the matrix units.
        if (completes && !T::kTransposed)
          StoreTile<T>::prepare(gemm.args, gemm.shape, store.part(thread / 128), row0, token0, thread);
        if constexpr (T::kPromotes) multiply<T>(ring, tiles, scales, sums, thread);
        const TileGemm<T> early = T::kPromotes ? gemm_again(args, shape, tiles) : gemm;
        const typename Items::RowItems row_items = Items::row_items(early.args, early.shape, row0, thread);
        const typename Items::ColumnItems column_items(early.args, token0, thread);
        if constexpr (!T::kPromotes) multiply<T>(ring, tiles, scales, sums, thread);
        const u32* others = nullptr;
        if constexpr (kStreamK) {
          parts.signal(tiles, thread);
          if (tiles.part) {
            parts.put(tiles, sums, thread);
            continue;
          }
        }
        if constexpr (kSplitLastWave) {
          if (tiles.part)
            others = LastWave<T>::exchange(shared.base, shared.neighbour_done(), shared.sums_arrived(), sums, completes,
                                           thread);
          if (!completes) break;  // it was the last piece
        }
        const TileGemm<T> late = gemm_again(args, shape, tiles);
        fmt::row_item<X>* own = shared.own_items(thread);
        column_items.share(late.args, token0, own, thread);
        if constexpr (T::kTransposed) {
          store.place(thread, [&](u8* to) {
            StoreTransposed<T>::store(late.args, late.shape, to, row_items, sums,
                                      typename T::XRows::Tile(late.shape, m0), row0, thread);
          });
          continue;
        }
        store.place(thread, [&](u8* to) {
          StoreTile<T>::store_tile(late.args, late.shape, to, own, row_items, sums, others, row0, token0, n0, m0,
                                   thread);
        });
      }
    }
    if constexpr (kStreamK) {
      fmt::row_item<X>* own = shared.own_items(thread);
      parts.combine(
          tiles, shared.base, thread,
          [&](i64 tile_m) {
            const i64 token0 = T::first_token(args, tile_m);
            const typename Items::ColumnItems items(args, token0, thread);
            items.share(args, token0, own, thread);
          },
          [&](int unit, const Sum(&sum)[4], int unit_row, int token, i64 tile_n, i64 tile_m) {
            StoreParts<T>::store_unit(args, shape, own, unit, sum, unit_row, token, T::first_row(shape, tile_n),
                                      T::first_token(args, tile_m), tile_n, tile_m, thread);
          });
    }
  }

  // Math warpgroups whose sums are over a part of k, which meet in the block or the cluster.
  TW_MEMBER static void compute_parts(const Args& args, const Shape& shape, const Shared& shared, Ring ring,
                                      Tiles tiles, int thread) {
    using Store = StoreParts<T>;
    typename Store::Exchange exchange = shared.exchange();
    Parts parts;
    parts.workspace = static_cast<u8*>(args.workspace);
    if constexpr (kStreamK) parts.slots_at = T::slots_at(args, shape);
    QuantizedRow row;
    if constexpr (T::kQuantizes) ring.row = shared.row(), ring.row_begin = T::kSplitK > 1 ? tiles.k_begin : 0;
    i64 n0, m0;
    while (next(tiles, ring, n0, m0)) {
      if constexpr (T::kQuantizes) row.fill(args, shape, shared, ring, tiles, m0, thread);
      Sums sums;
      const TileGemm<T> gemm(args, shape, tiles);
      const Scales scales = block_scales(gemm.args, gemm.shape, n0, m0, thread);
      multiply<T>(ring, tiles, scales, sums, thread);
      const TileGemm<T> own = gemm_again(args, shape, tiles);
      Sum* part = nullptr;
      if constexpr (kStreamK) {
        if (tiles.part) part = parts.sums_of(block_x(), tiles.share.tile - 1);
      }
      Store::store_reduced(own.args, own.shape, exchange, sums, n0, m0, thread, part);
      if constexpr (kStreamK) {
        if (part) parts.signal(tiles, tiles.share.tile - 1, thread, kMathThreads);
      }
    }
    if constexpr (kStreamK)
      parts.combine(
          tiles, args.m, reinterpret_cast<u32*>(exchange.slots), thread, kMathThreads,
          [&](int at, Sum sum, i64 tile_n, i64 tile_m) { Store::store_sum(args, shape, at, sum, tile_n, tile_m); });
  }
};

}  // namespace tw::gemm
