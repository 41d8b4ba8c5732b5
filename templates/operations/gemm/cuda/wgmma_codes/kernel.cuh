// SPDX-License-Identifier: Apache-2.0
// Codes by codes on Hopper, for many tokens: x in blocks of 32 signed bytes under a scale, w as tiles of integers under
// scales of their own, exact in integer arithmetic. Bytes and nibbles are integers that f16 holds, and single precision
// holds sums of 32 of their products. So f16 matrix instructions compute exact integers, as floats already, where
// integer instructions would leave a conversion for every result. What remains per group is y += (scale of w * scale of
// x) * sum, and y += minimum * (scale of x * sum of its codes) if w has minima.
//
// As in wgmma, weights are the 64-row side and come from registers. No tensor map can read x's blocks as f16, so the
// producer is a whole warpgroup: the copy engine brings rows of blocks as they are stored; the producer's threads write
// their codes as swizzled rows of f16, and their scales in the order in which math threads read them.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "formats/shared/format.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/wgmma/store/tile.cuh"
#include "operations/gemm/cuda/wgmma/tile_scheduler.cuh"
#include "operations/gemm/cuda/wgmma/weights.cuh"
#include "operations/gemm/cuda/wgmma_codes/plan.cuh"
#include "operations/gemm/cuda/widen.cuh"

namespace tw::gemm {

template <class X_, class W_, class Epi_, const WgmmaCodesKnobs& knobs>
struct WgmmaCodes {
  using X = X_;
  using W = W_;
  using Epi = Epi_;
  using Y = typename Epi::Out;
  TW_CONSTANTS(int, kBlockM = knobs.block_m, kBlockN = knobs.block_n(), kBlockK = kCodesStageK, kStrips = knobs.strips,
               kWarpgroupsN = knobs.warpgroups_n, kPieces = knobs.pieces, kStages = knobs.stages,
               kMathThreads = knobs.math_threads(), kThreads = knobs.threads());
  TW_CONSTANTS(int, kPanels = kCodesPanels, kGroup = kCodesGroup, kStageGroups = kBlockK / kGroup);
  using Weights = TileWeights<X, W, kStrips * kWarpgroupsN, kPanels>;
  using Tile = typename Weights::Tile;
  static_assert(X::kCodes && X::kGroup == kGroup && X::kBlock == kGroup && !X::kOffset && Weights::kPromotes &&
                    Weights::kPanelK * kPanels == kBlockK,
                "x is blocks of 32 signed bytes, w tiles of codes under scales");

  // x's elements that a producer's thread widens at a time. If that is a whole row, it needs more registers.
  TW_CONSTANTS(int, kUnit = kBlockM % 128 == 0 ? 128 : 64);
  TW_CONSTANTS(bool, kReallocatesRegisters = kWarpgroupsN == 2);  // the producer hands registers over
  TW_CONSTANTS(int, kMathRegisters = kUnit == 128 ? 216 : 224, kProducerRegisters = kUnit == 128 ? 72 : 56);

  // What StoreTile reads of an instantiation.
  using Sum = float;
  TW_CONSTANTS(int, kColumns = kBlockM, kSums = kBlockM / 2, kRingBytes = 0);
  using Sums = Sum[kStrips][kSums];
  TW_CONSTANTS(bool, kPromotes = true, kAsyncStore = false, kGathers = false);
  TW_MEMBER static constexpr Schedule schedule() { return Schedule::whole_tiles; }
  using Store = StoreTile<WgmmaCodes>;
  using Items = TileItems<WgmmaCodes>;

  // ---- shared memory
  TW_CONSTANTS(int, kRowBytes = X::template raw_bytes<kBlockK>(), kRawBytes = kBlockM * kRowBytes);
  TW_CONSTANTS(bool, kMinima = Tile::kOffset);
  static constexpr WgmmaCodesPlan kPlan = wgmma_codes_plan(
      knobs, {Weights::kWords, Tile::kScaleK, Tile::kScaleBytes, kMinima, kRowBytes, static_cast<int>(sizeof(Y)),
              Epi::kC ? static_cast<int>(sizeof(typename Epi::Residual)) : 0});
  TW_CONSTANTS(int, kPanelBytes = kBlockM * 128, kXBytes = kPanels * kPanelBytes, kStageBytes = kPlan.stage_bytes,
               kSharedBytes = kPlan.shared_bytes);
  static_assert(kStageBytes % kSwizzleAtom == 0, "stages start on swizzle atoms");
  static_assert(kRowBytes % 16 == 0 && kRawBytes % 128 == 0, "boxes of the copy engine");

  // Columns, results per thread and number of pieces.
  TW_CONSTANTS(int, kPieceColumns = kBlockM / kPieces, kResults = kPieceColumns / 2, kItems = kStrips * kPieces);
  static_assert(kBlockM <= 256 && kPieceColumns % 16 == 0, "pieces are whole pairs of eight columns");

  struct Ring {
    u8* shared;
    u64 *full, *empty;
    int stage = 0;
    u32 phase = 0;
    TW_MEMBER void advance() {
      if (++stage == kStages) stage = 0, phase ^= 1u;
    }
    TW_MEMBER u8* x() const { return shared + stage * kStageBytes; }
    TW_MEMBER u8* w() const { return x() + kXBytes; }
    TW_MEMBER float* scales(int group) const {
      return reinterpret_cast<float*>(shared + kPlan.scales_at + stage * kPlan.scale_bytes) + group * kBlockM;
    }
    TW_MEMBER float* sums(int group) const { return scales(kStageGroups + group); }
  };
  // The place of a token's scale among those of a group: a math thread has tokens 8 j + 2 (lane % 4) and the next, and
  // reads the scales of two j at once.
  TW_MEMBER static int scale_slot(int token) {
    return token / 16 * 16 + token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
  }

  using Tiles = ClusterTiles<kBlockM, kBlockN, kBlockK, 1, 1, 1, schedule()>;

  // ---- producer: a warpgroup
  TW_CONSTANTS(u32, kProducers = 9);  // their barrier
  TW_CONSTANTS(int, kRawLoader = 0, kWeightLoader = 96);

  // Loads rows of blocks into shared memory, kRawStages stages ahead; one thread's.
  struct Ahead {
    Tiles tiles;
    u32 kb;
    i64 m0;
    bool more;
    TW_MEMBER Ahead(const Tiles& all) : tiles(all) { advance(); }
    TW_MEMBER void advance() {
      i64 n0;
      more = tiles.next(n0, m0), kb = tiles.k_begin;
    }
    TW_MEMBER void fetch(const TensorMap* map, u8* to, u64* full) {
      if (!more) return;
      barrier_expect(full, kRawBytes);
      tensor_load(to, map, PanelPlace{static_cast<i32>(m0), static_cast<i32>(kb)}, full, kEvictNormal);
      if (++kb == tiles.k_end) advance();
    }
  };

  // Neighbouring threads widen neighbouring rows: 144 bytes apart, their reads fall into different banks, and the
  // swizzle spreads their writes.
  TW_MEMBER static void widen_rows(const u8* raw, const Ring& ring, int thread) {
    constexpr int kUnits = kBlockM * (kBlockK / kUnit);
    TW_NO_UNROLL for (int i = 0; i < ceil_div(kUnits, 128); ++i) {
      const int at = i * 128 + thread, row = at % kBlockM, first = at / kBlockM * (kUnit / kGroup);
      if (kUnits % 128 != 0 && at >= kUnits) break;
      typename X::template Unit<kUnit> unit;
      X::template load_raw<kUnit>(unit, raw + row * kRowBytes, nullptr, first * kGroup, 0);
      TW_UNROLL for (int g = 0; g < kUnit / kGroup; ++g) {
        u32 codes[8];
        float scale, offset;
        X::template group<kUnit>(unit, g, codes, scale, offset);
        u8* panel = ring.x() + (first + g) / 2 * kPanelBytes;
        TW_UNROLL for (int c = 0; c < 4; ++c) {
          const u32x2 low = widen<f16>(codes[2 * c]), high = widen<f16>(codes[2 * c + 1]);
          *reinterpret_cast<u32x4*>(panel + swizzled<128>(row, (first + g) % 2 * 4 + c)) = {low.x, low.y, high.x,
                                                                                            high.y};
        }
        ring.scales(first + g)[scale_slot(row)] = scale;
        if constexpr (kMinima) {
          i32 sum = 0;
          TW_UNROLL for (int i = 0; i < 8; ++i) sum = dp4a(codes[i], 0x01010101u, sum);
          ring.sums(first + g)[scale_slot(row)] = scale * static_cast<float>(sum);
        }
      }
    }
  }

  TW_MEMBER static void produce(const Args& args, const Shape& shape, const TensorMap* x_map, Ring ring, u64* raw_full,
                                Tiles tiles, int thread) {
    u8* const raw = ring.shared + kPlan.raw_at;
    // Weights that no other tile reads are the first to be evicted from L2.
    const u64 w_policy = tiles.m_tiles == 1 ? kEvictFirst : kEvictNormal;
    if (tiles.k_begin < tiles.k_end) {
      Ahead ahead(tiles);
      if (thread == kRawLoader)
        for (int i = 0; i < kRawStages; ++i) ahead.fetch(x_map, raw + i * kRawBytes, raw_full + i);
      int slot = 0;
      u32 raw_phase = 0;
      ring.phase = 1;  // all stages are empty
      i64 n0, m0;
      while (tiles.next(n0, m0)) {
        for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
          u64* full = ring.full + ring.stage;
          barrier_wait(ring.empty + ring.stage, ring.phase);
          if (thread == kWeightLoader) {
            barrier_expect(full, Weights::bytes(shape, n0, kb));
            Weights::load(ring.w(), args, shape, nullptr, n0, kb, full, w_policy);
          }
          barrier_wait(raw_full + slot, raw_phase);
          widen_rows(raw + slot * kRawBytes, ring, thread);
          fence_async();
          sync_named(kProducers, 128);
          if (thread == kRawLoader) {
            barrier_arrive(full);
            ahead.fetch(x_map, raw + slot * kRawBytes, raw_full + slot);
          }
          if (++slot == kRawStages) slot = 0, raw_phase ^= 1u;
          ring.advance();
        }
      }
    }
    if (thread == 0) launch_dependent_grids();  // late: the next kernel would compete for memory bandwidth
  }

  TW_MEMBER static void prefetch(const Args& args, const Shape& shape, Tiles tiles) {
    i64 n0, m0;
    if (!tiles.next(n0, m0)) return;
    const u32 end = min2(tiles.k_end, tiles.k_begin + kStages);
    for (u32 kb = tiles.k_begin; kb < end; ++kb) Weights::prefetch(args, shape, nullptr, n0, kb);
  }

  // ---- math
  TW_MEMBER static void release(const Ring& ring, int lane) {
    converge_warp();
    if (lane == 0) barrier_arrive(ring.empty + ring.stage);
  }

  // This thread's fragments of a group, two steps of each strip, and its rows' scales and minima.
  struct Fragments {
    u32 a[kStrips][2][4];
    float scale[kStrips][2], minimum[kStrips][2];
  };
  // What a panel's first group has read for its second.
  struct Panel {
    u32 words[kStrips][Weights::kWords];
    typename Tile::Scales scales[kStrips];
  };
  TW_MEMBER static void unpack(const Ring& ring, u32 kb, int g, int group, int thread, Panel& panel, Fragments& to) {
    TW_UNROLL for (int s = 0; s < kStrips; ++s) {
      if (g % 2 == 0) {
        Weights::read_codes(ring.w(), group * kStrips + s, 0, g / 2, thread, panel.words[s]);
        panel.scales[s] = Weights::read_scales(ring.w(), group * kStrips + s, kb, 0, g / 2, thread);
      }
      TW_UNROLL for (int step = 0; step < 2; ++step) {
        Tile::fragment(panel.words[s], g % 2 * 2 + step, panel.scales[s], to.a[s][step]);
        pin(to.a[s][step]);
      }
      TW_UNROLL for (int row = 0; row < 2; ++row) {
        to.scale[s][row] = Tile::row_scale(panel.scales[s], row, g % 2 * 2);
        if constexpr (kMinima) to.minimum[s][row] = Tile::row_minimum(panel.scales[s], row, g % 2 * 2);
      }
    }
  }
  // Item i of a group is piece i / kStrips by strip i % kStrips.
  TW_MEMBER static void multiply_item(u32 x_base, int stage, int g, int item, Fragments& w,
                                      float (&products)[kResults]) {
    const u32 x = x_base + static_cast<u32>(stage * kStageBytes + g / 2 * kPanelBytes +
                                            item / kStrips * kPieceColumns * 128 + g % 2 * 64) /
                               16;
    wgmma_fence();
    TW_UNROLL for (int step = 0; step < 2; ++step)
        Wgmma<WgmmaKind::f16, kPieceColumns>::rs(products, w.a[item % kStrips][step], x + 2 * step, step > 0);
    wgmma_commit();
  }

  TW_MEMBER static void multiply(Ring& ring, const Tiles& tiles, Sums& sums, int thread) {
    const int lane = thread % 32, group = uniform(thread / 128);
    TW_UNROLL for (int s = 0; s < kStrips; ++s) TW_UNROLL for (int i = 0; i < kSums; ++i) sums[s][i] = 0;
    if (tiles.k_begin >= tiles.k_end) return;
    const u32 x_base = wgmma_descriptor(ring.shared);
    Fragments w[2];  // of a group and of the next
    float products[2][kResults];
    Panel panel;
    barrier_wait(ring.full + ring.stage, ring.phase);
    unpack(ring, tiles.k_begin, 0, group, thread % 128, panel, w[0]);
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      // No instruction is in flight from one stage to the next: ptxas serializes what it cannot follow around the loop
      // (C7514).
      multiply_item(x_base, ring.stage, 0, 0, w[0], products[0]);
      const bool last = kb + 1 == tiles.k_end;
      Ring next = ring;
      TW_UNROLL for (int g = 0; g < kStageGroups; ++g) {
        const bool ends = g + 1 == kStageGroups;
        if (ends && !last) {
          next.advance();
          barrier_wait(next.full + next.stage, next.phase);
        }
        // After the last stage's last group: its first again, and not used.
        unpack(ends ? next : ring, ends && !last ? kb + 1 : kb, (g + 1) % kStageGroups, group, thread % 128, panel,
               w[(g + 1) % 2]);
        float factors[kPieceColumns / 4], sums_of_x[kPieceColumns / 4];
        TW_UNROLL for (int i = 0; i < kItems; ++i) {
          const int n = g * kItems + i, piece = i / kStrips, s = i % kStrips;
          if (i + 1 < kItems)
            multiply_item(x_base, ring.stage, g, i + 1, w[g % 2], products[(n + 1) % 2]);
          else if (!ends)
            multiply_item(x_base, ring.stage, g + 1, 0, w[(g + 1) % 2], products[(n + 1) % 2]);
          if (s == 0) load_factors(factors, ring.scales(g) + piece * kPieceColumns + lane % 4 * 4);
          if (kMinima && s == 0) load_factors(sums_of_x, ring.sums(g) + piece * kPieceColumns + lane % 4 * 4);
          if (i + 1 < kItems || !ends)
            wgmma_wait<1>();
          else
            wgmma_wait<0>();
          TW_UNROLL for (int j = 0; j < kResults; ++j) {
            sums[s][piece * kResults + j] +=
                (w[g % 2].scale[s][j % 4 / 2] * factors[j / 4 * 2 + j % 2]) * products[n % 2][j];
            if constexpr (kMinima)
              sums[s][piece * kResults + j] += w[g % 2].minimum[s][j % 4 / 2] * sums_of_x[j / 4 * 2 + j % 2];
          }
        }
      }
      release(ring, lane);
      ring.advance();
    }
  }
  // Four floats of every sixteen.
  TW_MEMBER static void load_factors(float (&to)[kPieceColumns / 4], const float* from) {
    TW_UNROLL for (int i = 0; i < kPieceColumns / 16; ++i) {
      const u32x4 q = *reinterpret_cast<const u32x4*>(from + 16 * i);
      to[4 * i] = bits_as<float>(q.x), to[4 * i + 1] = bits_as<float>(q.y), to[4 * i + 2] = bits_as<float>(q.z),
             to[4 * i + 3] = bits_as<float>(q.w);
    }
  }

  // ---- the whole
  TW_MEMBER static void run(const Args& args, const Shape& shape, const TensorMap* x_map) {
    u8* shared = dynamic_shared();
    Ring ring{shared, reinterpret_cast<u64*>(shared + kPlan.barriers_at), nullptr};
    ring.empty = ring.full + kStages;
    u64* raw_full = ring.empty + kStages;
    const int thread = static_cast<int>(thread_x());
    if (thread == 0) {
      for (int i = 0; i < kStages; ++i) {
        barrier_init(ring.full + i,
                     2);  // one arrival for the producer's threads, and one by the thread that loads weights
        barrier_init(ring.empty + i, kMathThreads / 32);
      }
      for (int i = 0; i < kRawStages; ++i) barrier_init(raw_full + i, 1);
      barrier_init_fence();
      prefetch_map(x_map);
    }
    sync_block();
    Tiles tiles(args, shape);
    // While the previous kernel ends, the first stages of weights are prefetched into L2.
    if (thread == kMathThreads) prefetch(args, shape, tiles);
    wait_prerequisite_grids();

    if (thread >= kMathThreads) {
      if constexpr (kReallocatesRegisters) give_registers<kProducerRegisters>();
      produce(args, shape, x_map, ring, raw_full, tiles, thread - kMathThreads);
    } else {
      if constexpr (kReallocatesRegisters) take_registers<kMathRegisters>();
      i64 n0, m0;
      while (tiles.next(n0, m0)) {
        Sums sums;
        u8* staging = shared + kPlan.staging_at + thread / 128 * (kPlan.staging_bytes / kWarpgroupsN);
        Store::prepare(args, shape, staging, n0, m0, thread);
        multiply(ring, tiles, sums, thread);
        const typename Items::RowItems row_items = Items::row_items(args, shape, n0, thread);
        Store::store_tile(args, shape, staging, nullptr, row_items, sums, nullptr, n0, m0, n0, m0, thread);
      }
    }
  }
};

}  // namespace tw::gemm
