// SPDX-License-Identifier: Apache-2.0
// Hopper's kernel: weights are the 64-row side of the warpgroup instruction and tokens its columns, so that one text
// serves one token as well as thousands, and weights may come from registers, where coded ones are unpacked.
//
// One producer warp feeds a ring of stages through the copy engine; GROUPS math warpgroups, 64 STRIPS rows of w each,
// share the stage's tokens. Blocks are persistent: the producer runs ahead into the next tile while the last one is
// stored. Within a cluster, blocks either share tokens (SPLIT == 1: neighbours along n, each fetches its part of x for
// all) or split k and add up through distributed shared memory, in a fixed order.
//
//   BM        tokens per tile: 8 to 256; or 1, whose row of x is in shared memory once, as it is, and stands for all
//   columns of the matrix
//             instruction (boxes with rows beyond the matrix cost more than others)
//   STRIPS    64-row strips of w per warpgroup
//   GROUPS    math warpgroups along n; BN = 64 STRIPS GROUPS rows of w per tile
//   KGROUPS   math warpgroups along k: each takes its share of every stage's panels
//   PANELS    128-byte pieces of x's rows per stage
//   STAGES    of the ring
//   CLUSTER   blocks per cluster
//   SPLIT     1 or CLUSTER
//   FAST      fp8: products of all of k are summed by the matrix units, which keep some 14 bits; else those of a panel
//   WARPS     matrix instructions of single warps instead: with few tokens it is the instructions around each product
//   that
//             count, and these need fewer (no descriptors, fences and waits)
//   TURNED    X is w's format and W x's: tokens are the 64-row side, and BM rows of w. Other tiles then fill the last
//   round; and
//             with scales of blocks and many tokens a thread has two tokens' to read for a panel instead of BM / 4
//   TAIL      of gemm/wgmma/schedule.cuh. kClusterTail: each block sends the other the sums of one warpgroup, and
//   completes its own SHELF     a finished tile is left on a shelf in shared memory, from which the warps beside the
//   producer store it: the next
//             tile's products need not wait until the memory has taken it
//   ROW       QuantizedRow: of codes and one token, x arrives as floats and a block encodes it
//   (gemm/wgmma/quantized_row.cuh); void: it does not
#pragma once
#include "arch/sm90.cuh"
#include "core/format.cuh"
#include "gemm/block_scales.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/operands.cuh"
#include "gemm/wgmma/multiply.cuh"
#include "gemm/wgmma/store.cuh"
#include "gemm/wgmma/stream_k.cuh"
#include "gemm/wgmma/tile_scheduler.cuh"
#include "gemm/wgmma/weights.cuh"

namespace tw::gemm {

template <class X>
struct KindOf;
template <>
struct KindOf<f16> {
  static constexpr WgmmaKind value = WgmmaKind::f16;
};
template <>
struct KindOf<bf16> {
  static constexpr WgmmaKind value = WgmmaKind::bf16;
};
template <>
struct KindOf<e4m3> {
  static constexpr WgmmaKind value = WgmmaKind::e4m3;
};
template <>
struct KindOf<e5m2> {
  static constexpr WgmmaKind value = WgmmaKind::e5m2;
};
template <>
struct KindOf<i8> {
  static constexpr WgmmaKind value = WgmmaKind::s8;
};
template <>
struct KindOf<Codes> {
  static constexpr WgmmaKind value = WgmmaKind::s8;
};
// Of columns of Element and strips of W's elements, if these are others: only FP8 may be mixed.
template <class Element, class W>
TW_FN constexpr WgmmaKind wgmma_kind() {
  if constexpr (same<Element, e4m3> && same<W, e5m2>)
    return WgmmaKind::e5m2_e4m3;
  else if constexpr (same<Element, e5m2> && same<W, e4m3>)
    return WgmmaKind::e4m3_e5m2;
  else
    return KindOf<Element>::value;
}

// Of a row of x in shared memory: a swizzled panel, or two panels of blocks as they are stored, whose rows fall into
// different banks.
template <class X>
TW_FN constexpr int x_row_bytes() {
  if constexpr (same<tile_element<X>, Codes>)
    return X::template raw_bytes<128>();
  else
    return 128;
}

template <class X, class W, class Epi, int BM, int STRIPS, int GROUPS, int KGROUPS, int PANELS, int STAGES, int CLUSTER,
          int SPLIT, bool WARPS, bool FAST, bool TURNED, int TAIL, bool SHELF = false, class ROW = void>
struct Warpgroups {
  using Element = tile_element<X>;
  static constexpr bool kCodes = same<Element, Codes>;  // blocks of bytes with scales
  static constexpr bool kQuantizes = !same<ROW, void>;
  static constexpr WgmmaKind kKind = wgmma_kind<Element, element_of<W>>();
  static constexpr int kColumns = max2(BM, 8);  // of the matrix instruction
  using Weights = typename WeightsOf<X, W, STRIPS * GROUPS, PANELS, WARPS ? kColumns : 0>::type;
  using Product = select<kKind == WgmmaKind::s8, i32, float>;
  // A panel's products are kept apart from the sums: scales of groups along k that the operand cannot hold apply to
  // them, and sums in single precision are better than fp8's.
  static constexpr bool kDeferred = Weights::kDeferred || (is_fp8(kKind) && !FAST);
  using Sum = select<kDeferred, float, Product>;
  using Scales = BlockScales<X, W, BM, STRIPS>;

  // Few tokens: what a launch begins with weighs most. Where weights are constant, the next one's blocks come as soon
  // as there is room for them, and load theirs while this one still runs.
  static constexpr bool kFew = BM <= 64 && !TURNED;

  // Many accumulators need more registers than an even share: then the producer is a warpgroup that hands its own over.
  // (Its addresses take 72; where less is left for them, the pairs of formats and tiles were looked through for
  // spills.)
  static constexpr bool kThree = GROUPS * KGROUPS == 3;
  static constexpr bool kUneven =
      kThree ||
      (GROUPS * KGROUPS == 2 && (STRIPS + (kDeferred && !WARPS ? 1 : 0)) * BM / 2 >= (Weights::kRegisters ? 80 : 96));
  static constexpr int kMath = 128 * GROUPS * KGROUPS, kThreads = kMath + (kUneven ? 128 : 32);
  static constexpr bool kShort = TURNED && !SHELF;
  // Sums of bytes are converted before they are added up: a panel's fragments are complete before the last one's
  // products are. Of FP8 that pays where they are most and Stream-K has them in parts.
  static constexpr bool kApart = kDeferred && Weights::kRegisters && !kFew;
  static constexpr bool kAhead = kApart && (kKind == WgmmaKind::s8 || (BM > 160 && TAIL == kStreamK));
  static constexpr bool kMost = kShort || (kApart && BM > 144 && (kAhead || TAIL != kStreamK));
  static constexpr int kMathRegisters = kThree ? 144 : kMost ? 232 : kAhead ? 224 : 216;
  static constexpr int kProducerRegisters =
      65536 / kThreads / 8 * 8 * (kThreads / 128) - GROUPS * KGROUPS * kMathRegisters;
  static constexpr int kStripRows = 64, BN = kStripRows * STRIPS * GROUPS;
  static constexpr int kPanelK = Weights::kPanelK;
  static constexpr int BK = kPanelK * PANELS;
  static constexpr int kSums = kColumns / 2;  // of a strip, per thread
  static constexpr int kBM = BM, kStrips = STRIPS, kGroups = GROUPS, kKGroups = KGROUPS, kPanels = PANELS,
                       kCluster = CLUSTER, kSplit = SPLIT;
  static constexpr bool kWarps = WARPS, kTurned = TURNED, kShelf = SHELF;
  static constexpr int kTail = TAIL;
  static constexpr int kTogether = kCodes ? 2 : 1;        // panels whose pieces of a row of x lie side by side: a box's
  static constexpr int kShare = SPLIT > 1 ? 1 : CLUSTER;  // blocks that share x
  static constexpr int kBoxRows = BM / kShare, kBoxPanels = kShare > 1 ? 1 : PANELS / kTogether;  // of x
  static constexpr int kParts = SPLIT * KGROUPS;  // of k, whose sums meet at the end
  static_assert(!WARPS || (Weights::kRegisters && !is_fp8(kKind) && (kCodes || BM <= 32)), "knobs");
  static_assert(!kCodes || (WARPS && Weights::kDeferred && PANELS / KGROUPS % kTogether == 0), "knobs");
  static_assert(!Scales::kAny || (kDeferred && !Weights::kRegisters), "scales of blocks");
  static_assert(!kQuantizes || (kCodes && BM == 1), "a row of blocks");
  static_assert(BM == 1 ? WARPS && kShare == 1 : BM % (8 * kShare) == 0, "knobs");
  static_assert(BM <= 256 && (SPLIT == 1 || SPLIT == CLUSTER) && PANELS % KGROUPS == 0, "knobs");

  // Shared memory: the ring, then what the epilogue turns around, scales of x, barriers.
  static constexpr int kRowBytes = x_row_bytes<X>();  // of a box
  static constexpr int kPanelBytes = BM * kRowBytes / kTogether;
  static constexpr int kXCopied = kQuantizes ? 0 : PANELS * kPanelBytes, kXBytes = (kXCopied + 127) / 128 * 128;
  static constexpr int kStageBytes = kXBytes + Weights::kStageBytes;
  static_assert(kStageBytes % (kCodes || BM == 1 ? 128 : 1024) == 0,
                "what the copy engine fills, swizzled or as stored");
  static constexpr int kRingBytes = STAGES * kStageBytes;
  using Y = typename Epi::Out;
  static_assert(!TURNED || SPLIT * KGROUPS == 1, "knobs");
  static_assert(TAIL != kClusterTail || (kShare == 2 && GROUPS == 2), "two blocks of two warpgroups");
  static_assert(TAIL == kNoTail || !TURNED, "knobs");
  static_assert(TAIL == kNoTail || kParts == 1 || (TAIL != kClusterTail && CLUSTER == 1),
                "whole sums of each warpgroup, or of a block");
  static_assert(TAIL != kQueue || (kFew && CLUSTER == 1), "knobs");
  static constexpr int kSlice = BN / SPLIT;  // rows of w whose sums one block of the cluster completes
  static constexpr int kSlotFloats = kParts * kColumns * kSlice;
  static_assert(!SHELF || (kUneven && kParts == 1 && TAIL == kNoTail && !Epi::kC && sizeof(Y) <= 2),
                "whole tiles, and idle warps");
  static constexpr int kTurnBytes = SHELF        ? shelf_bytes(BM, BN, TURNED, sizeof(Y))
                                    : kParts > 1 ? 2 * kSlotFloats * 4
                                    : TURNED     ? GROUPS * 4 * TurnedOutlet<Epi>::kBytes
                                                 : GROUPS* Outlet<Epi, kColumns>::kBytes;
  static constexpr int kScaleBytes =
      TURNED ? 0 : GROUPS * KGROUPS * kColumns * fmt::row_bytes<X>;  // a copy for each warpgroup
  static constexpr int kRowAt = kRingBytes + kTurnBytes;
  TW_MEMBER static constexpr int row_of_x_bytes() {
    if constexpr (kQuantizes)
      return ROW::kBytes;
    else
      return 0;
  }
  static constexpr int kMainBytes = kRowAt + row_of_x_bytes();
  static constexpr int kSharedBytes = kMainBytes + kScaleBytes + 16 * STAGES +
                                      (TAIL == kStreamK || SHELF            ? 16 * GROUPS
                                       : kParts > 1 || TAIL == kClusterTail ? 16
                                                                            : 0) +
                                      (TAIL == kQueue ? 4 * STAGES : 0);

  struct Ring {
    u8* stages;
    u64* full;
    u64* empty;
    u32* tiles = nullptr;  // kQueue: the number of the tile that begins with a stage
    int stage = 0;
    u32 phase = 0;
    const u8* row = nullptr;  // kQuantizes: x from stage row_begin of k on
    u32 row_begin = 0;
    TW_MEMBER void advance() {
      if (++stage == STAGES) stage = 0, phase ^= 1u;
    }
    TW_MEMBER u8* x() const { return stages + stage * kStageBytes; }
    TW_MEMBER u8* w() const { return x() + kXBytes; }
  };

  using Tiles = ClusterTiles<BM, BN, BK, kShare, CLUSTER, SPLIT, TAIL>;
  using Parts = select<(kParts > 1), StreamKFew<Sum, BM, BN>, StreamK<Sum, STRIPS, kSums, GROUPS, CLUSTER, kRingBytes>>;

  // ---- producer: one thread
  TW_MEMBER static void produce(const Args& args, const Shape& shape, const TensorMap* x_map, const TensorMap* w_map,
                                Ring ring, Tiles tiles, int begun) {
    if (kFew && shape.constant_weights) launch_dependent_grids();
    const u32 rank = kShare > 1 ? cluster_rank() : 0;
    const u64 w_policy = weight_policy(tiles);
    ring.phase = 1;  // all stages are empty
    i64 n0, m0;
    while (TAIL == kQueue ? tiles.take(static_cast<u32*>(args.workspace), n0, m0) : tiles.next(n0, m0)) {
      const bool alone = TAIL == kClusterTail && tiles.part;  // blocks have the same tokens, but different stages
      for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
        u64* full = ring.full + ring.stage;
        if (TAIL == kQueue && kb + 1 == tiles.k_end) tiles.ask(static_cast<u32*>(args.workspace));
        const bool fresh = !kFew || begun == 0;
        if (!fresh) {
          --begun;
        } else {
          barrier_wait(ring.empty + ring.stage, ring.phase);
          if (TAIL == kQueue && kb == tiles.k_begin) ring.tiles[ring.stage] = tiles.place;
          barrier_expect(full, kXCopied + Weights::bytes(shape, n0, kb));
        }
        const i32 panel = static_cast<i32>(kb * (PANELS / kTogether));
        if constexpr (kQuantizes) {
          // x does not come this way.
        } else if constexpr (kShare > 1) {
          // Each block's rows of each panel, for all. A box is whole panels, so with several there is one copy per
          // panel.
          constexpr int kRows = BM / kShare;
          if (alone) {
            TW_NO_UNROLL for (int i = 0; i < PANELS / kTogether * kShare; ++i)
                tensor_load(ring.x() + i * kRows * kRowBytes, x_map, static_cast<i32>(m0 + i % kShare * kRows),
                            panel + i / kShare, full, kEvictNormal);
          } else {
            TW_UNROLL for (int p = 0; p < PANELS / kTogether; ++p) tensor_load_multicast(
                ring.x() + (p * BM + rank * kRows) * kRowBytes, x_map, static_cast<i32>(m0 + rank * kRows), panel + p,
                full, (1u << kShare) - 1, kEvictNormal);
          }
        } else {
          tensor_load(ring.x(), x_map, static_cast<i32>(m0), panel, full, kEvictNormal);
        }
        if (fresh) Weights::load(ring.w(), args, shape, w_map, n0, kb, full, w_policy);
        ring.advance();
      }
    }
    launch_dependent_grids();              // late: what comes next would compete for the memory
    if (TAIL == kQueue && !tiles.first) {  // a stage without data, which says that no tile begins with it
      barrier_wait(ring.empty + ring.stage, ring.phase);
      ring.tiles[ring.stage] = tiles.place;
      barrier_arrive(ring.full + ring.stage);
    }
    // Nobody may leave while copies or arrivals of a neighbour are still on their way here.
    if constexpr (kShare > 1) {
      TW_NO_UNROLL for (int i = 0; i < STAGES; ++i) {
        barrier_wait(ring.empty + ring.stage, ring.phase);
        ring.advance();
      }
    }
  }

  // Weights that no other tile reads leave L2 to the rest.
  TW_MEMBER static u64 weight_policy(const Tiles& tiles) { return tiles.m_tiles == 1 ? kEvictFirst : kEvictNormal; }

  // While the kernel before this one ends, the first tile's first stages of weights come as near as L2, or, where they
  // are constant and tokens few, into the ring. How many stages of it they fill.
  TW_MEMBER static int begin(const Args& args, const Shape& shape, const TensorMap* w_map, Ring ring, Tiles tiles) {
    i64 n0, m0;
    if (TURNED || !tiles.next(n0, m0)) return 0;
    const bool early = kFew && shape.constant_weights;
    // Where a launch has a tile for each block only, what the kernel before it still loads comes first: two thirds of
    // the ring then, or with more than eight tokens, that keep it longer, eight panels (docs/measurement-log.md).
    constexpr int kBegun = WARPS && BM > 8 ? min2(max2(1, 8 / PANELS), STAGES) : (2 * STAGES + 1) / 3;
    const u32 begun = early && tiles.whole <= tiles.clusters ? kBegun : STAGES;
    const u32 end = min2(tiles.k_end, tiles.k_begin + begun);
    TW_NO_UNROLL for (u32 kb = tiles.k_begin; kb < end; ++kb) {
      if (!early) {
        Weights::prefetch(args, shape, w_map, n0, kb);
        continue;
      }
      barrier_expect(ring.full + ring.stage, kXCopied + Weights::bytes(shape, n0, kb));
      Weights::load(ring.w(), args, shape, w_map, n0, kb, ring.full + ring.stage, weight_policy(tiles));
      ring.advance();
    }
    return early ? static_cast<int>(end - tiles.k_begin) : 0;
  }

  using Sums = Sum[STRIPS][kSums];
  using Stores = WarpgroupStores<X, W, Epi, Warpgroups>;
  using Products = WarpgroupProducts<X, Warpgroups>;

  // ---- SHELF: a warpgroup's part of it, which is full when its four warps say so, and empty when the storing warps
  // do.
  static constexpr int kStorers = 3;  // warps
  struct Shelf {
    u8* tiles;
    u64 *full, *empty;  // of each group
    u32 phase = 0;
    TW_MEMBER u8* part(int group) const { return tiles + group * (kTurnBytes / GROUPS); }
    // By a warp of math, before it puts something down, and after; by a storing warp, the other way round.
    TW_MEMBER void await_empty(int group) const { barrier_wait(empty + group, phase ^ 1u); }
    TW_MEMBER void await_full(int group) const { barrier_wait(full + group, phase); }
    TW_MEMBER static void tell(u64* barrier, int lane) {
      sync_warp();
      if (lane == 0) barrier_arrive(barrier);
    }
  };
  TW_MEMBER static void store(const Args& args, const Shape& shape, Shelf shelf, Tiles tiles, int warp, int lane) {
    for (i64 n0, m0; tiles.next(n0, m0); shelf.phase ^= 1u) TW_NO_UNROLL for (int group = 0; group < GROUPS; ++group) {
        shelf.await_full(group);
        Stores::store_shelf(args, shape, shelf.part(group), group, n0, m0, warp, lane);
        Shelf::tell(shelf.empty + group, lane);
      }
  }

  // ---- math
  // The ring's stage `s` may be filled again: every warp tells every block that writes into it.
  TW_MEMBER static void release(const Ring& ring, int stage, int lane) {
    if constexpr (WARPS)
      sync_warp();  // other lanes read codes with ordinary loads
    else
      lanes_together();
    if constexpr (kShare > 1) {
      if (lane < kShare) barrier_arrive_remote(ring.empty + stage, static_cast<u32>(lane));
    } else {
      if (lane == 0) barrier_arrive(ring.empty + stage);
    }
  }

  // put(where) leaves a tile in what a warpgroup has of shared memory besides the ring.
  template <class Put>
  TW_MEMBER static void place(Shelf& shelf, int thread, const Put& put) {
    const int group = thread / 128;
    if constexpr (SHELF) shelf.await_empty(group);
    put(shelf.part(group));
    if constexpr (SHELF) Shelf::tell(shelf.full + group, thread % 32), shelf.phase ^= 1u;
  }

  // ---- the whole
  TW_MEMBER static Scales scales_of(const Args& args, const Shape& shape, i64 n0, i64 m0, int thread) {
    const i64 ldx = args.ldx ? args.ldx : shape.k;
    return {{args.x.scales, args.m, TURNED ? shape.k : ldx, m0},
            {args.w.scales, shape.n, TURNED ? ldx : shape.k, n0},
            shape.k,
            2 * (thread % 4),
            Stores::row_of(thread, 0, 0)};
  }

  TW_MEMBER static Tiles tiles_of(const Args& args, const Shape& shape) {
    if constexpr (TAIL == kStreamK)
      return Tiles(args, shape, Parts::slots(shape), Parts::kPartsLimit);
    else
      return Tiles(args, shape);
  }

  // The next tile, for math threads.
  TW_MEMBER static bool next(Tiles& tiles, const Ring& ring, i64& n0, i64& m0) {
    if constexpr (TAIL == kQueue) {
      if (!tiles.first) {
        barrier_wait(ring.full + ring.stage, ring.phase);
        tiles.place = ring.tiles[ring.stage];
      }
      tiles.first = false;
      return tiles.locate(tiles.place, n0, m0);
    } else {
      return tiles.next(n0, m0);
    }
  }

  // x_map: unless kQuantizes; w_map: of plain weights only. TURNED: from here on x is called w, and w x.
  TW_MEMBER static void run(const Args& args, const Shape& shape, const TensorMap* x_map = nullptr,
                            const TensorMap* w_map = nullptr) {
    if constexpr (TURNED) {
      Shape turned = shape;
      turned.n = args.m;
      work({args.w, args.x, args.y, args.bias, shape.n, args.ldx, args.ldy, args.c, args.ldc}, turned, x_map, w_map);
    } else {
      work(args, shape, x_map, w_map);
    }
  }
  TW_MEMBER static void work(const Args& args, const Shape& shape, const TensorMap* x_map, const TensorMap* w_map) {
    u8* shared = dynamic_shared();
    auto* x_scales = reinterpret_cast<fmt::row_item<X>*>(shared + kMainBytes);
    Ring ring{shared, reinterpret_cast<u64*>(shared + kMainBytes + kScaleBytes), nullptr};
    ring.empty = ring.full + STAGES;
    typename Stores::Exchange exchange{reinterpret_cast<float*>(shared + kRingBytes), ring.empty + STAGES, 0, 0};
    u64 *neighbour_done = ring.empty + STAGES, *arrived = neighbour_done + 1;  // kClusterTail
    if constexpr (TAIL == kQueue) ring.tiles = reinterpret_cast<u32*>(shared + kSharedBytes) - STAGES;
    Shelf shelf{shared + kRingBytes, ring.empty + STAGES, ring.empty + STAGES + GROUPS};
    const int thread = static_cast<int>(thread_x());
    if (thread == 0) {
      TW_NO_UNROLL for (int i = 0; i < STAGES; ++i) {
        barrier_init(ring.full + i, 1);
        barrier_init(ring.empty + i, kMath / 32 * kShare);
      }
      if constexpr (kParts > 1) {
        barrier_init(exchange.arrived, 1);
        barrier_init(exchange.arrived + 1, 1);
      }
      if constexpr (TAIL == kClusterTail) {
        barrier_init(neighbour_done, kMath / 32);
        barrier_init(arrived, 1);
      }
      if constexpr (TAIL == kStreamK && kParts == 1)
        for (int i = 0; i < GROUPS; ++i) barrier_init(ring.empty + STAGES + i, 1);
      if constexpr (SHELF)
        for (int i = 0; i < GROUPS; ++i) barrier_init(shelf.full + i, 4), barrier_init(shelf.empty + i, kStorers);
      barrier_init_fence();
      if (!kQuantizes) prefetch_map(x_map);
      if (!Weights::kRegisters) prefetch_map(w_map);
    }
    if constexpr (CLUSTER > 1)
      sync_cluster();
    else
      sync_block();
    Tiles tiles = tiles_of(args, shape);
    const int begun = thread == kMath ? begin(args, shape, w_map, ring, tiles) : 0;
    wait_prerequisite_grids();

    if (thread >= kMath) {
      if constexpr (kUneven) give_registers<kProducerRegisters>();
      if (thread == kMath) produce(args, shape, x_map, w_map, ring, tiles, begun);
      if (SHELF && thread >= kMath + 32) store(args, shape, shelf, tiles, (thread - kMath) / 32 - 1, thread % 32);
    } else {
      if constexpr (kUneven) take_registers<kMathRegisters>();
      if (Products::kTurns && thread / 128 == GROUPS * KGROUPS - 1)
        Products::pass_turn(GROUPS - 1, KGROUPS - 1);  // the first turn is the first warpgroup's
      Parts parts;
      if constexpr (kParts > 1)
        parts.workspace = static_cast<u8*>(args.workspace);
      else
        parts = {static_cast<u8*>(args.workspace), ring.empty + STAGES};
      if constexpr (kQuantizes) ring.row = shared + kRowAt, ring.row_begin = SPLIT > 1 ? tiles.k_begin : 0;
      i64 n0, m0, row = -1;
      while (next(tiles, ring, n0, m0)) {
        if constexpr (kQuantizes) {
          if (row != m0) {
            const u32 row_end = SPLIT > 1 ? tiles.k_end : static_cast<u32>(ceil_div64(shape.k, BK));
            if (row >= 0) sync_named(8, kMath);  // all have read the last one
            ROW::template fill<kMath>(shared + kRowAt, args, shape, m0, i64{ring.row_begin} * BK,
                                      min2(i64{row_end} * BK, shape.k), thread);
            sync_named(8, kMath);
            row = m0;
          }
        }
        const bool completes =
            !tiles.part || (TAIL == kClusterTail && static_cast<u32>(thread) / 128 == cluster_rank());
        if (TAIL == kClusterTail && tiles.skip) {
          barrier_wait(ring.full + ring.stage, ring.phase);
          release(ring, ring.stage, thread % 32);
          ring.advance(), ++tiles.k_begin;
        }
        Sums sums;
        const Scales scales = scales_of(args, shape, n0, m0, thread);
        if constexpr (kParts > 1) {
          Products::multiply(ring, tiles, scales, sums, thread);
          Sum* part = nullptr;
          if constexpr (TAIL == kStreamK) {
            if (tiles.part) part = parts.sums_of(block_x(), tiles.share.tile - 1);
          }
          Stores::store_reduced(args, shape, exchange, sums, n0, m0, thread, part);
          if constexpr (TAIL == kStreamK) {
            if (part) parts.tell(tiles, tiles.share.tile - 1, thread, kMath);
          }
        } else if constexpr (TURNED) {
          Products::multiply(ring, tiles, scales, sums, thread);
          place(shelf, thread, [&](u8* to) { Stores::store_turned(args, shape, to, sums, n0, m0, thread); });
        } else {
          // What the epilogue reads takes long to come, so it is asked for before, where registers allow. Warpgroups do
          // not wait for each other: while one stores, another has the matrix units.
          if (completes) Stores::prepare(args, shape, shelf.part(thread / 128), n0, m0, thread);
          if constexpr (kDeferred) Products::multiply(ring, tiles, scales, sums, thread);
          const typename Stores::Scaling scale = Stores::scaling(args, shape, n0, thread);
          const typename Stores::ColumnScales column_scales(args, m0, thread);
          if constexpr (!kDeferred) Products::multiply(ring, tiles, scales, sums, thread);
          const u32* others = nullptr;
          if constexpr (TAIL == kStreamK) {
            parts.tell(tiles, thread);
            if (tiles.part) {
              parts.put(tiles, sums, thread);
              continue;
            }
          }
          if constexpr (TAIL == kClusterTail) {
            if (tiles.part) others = Stores::exchange(shared, neighbour_done, arrived, sums, completes, thread);
            if (!completes) break;  // it was the last piece
          }
          fmt::row_item<X>* own = x_scales + thread / 128 * kColumns;
          column_scales.share(args, m0, own, thread);
          place(shelf, thread,
                [&](u8* to) { Stores::store_tile(args, shape, to, own, scale, sums, others, n0, m0, thread); });
        }
      }
      if constexpr (TAIL == kStreamK && kParts > 1) {
        parts.combine(
            tiles, args.m, reinterpret_cast<u32*>(exchange.slots), thread, kMath,
            [&](int at, Sum sum, i64 tile_n, i64 tile_m) { Stores::store_sum(args, shape, at, sum, tile_n, tile_m); });
      } else if constexpr (TAIL == kStreamK) {
        fmt::row_item<X>* own = x_scales + thread / 128 * kColumns;
        parts.combine(
            tiles, shared, thread,
            [&](i64 tile_m) {
              const typename Stores::ColumnScales scales(args, tile_m, thread);
              scales.share(args, tile_m, own, thread);
            },
            [&](int unit, const Sum(&sum)[4], int row, int token, i64 tile_n, i64 tile_m) {
              Stores::store_unit(args, shape, own, unit, sum, row, token, tile_n, tile_m, thread);
            });
      }
    }
  }
};

}  // namespace tw::gemm
