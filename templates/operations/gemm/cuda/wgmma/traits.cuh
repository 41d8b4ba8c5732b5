// SPDX-License-Identifier: Apache-2.0
// What the warpgroup kernel's parts know of one instantiation at compile time: operand types, the plan, and constants
// that follow from both.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "formats/shared/format.cuh"
#include "operations/gemm/cuda/block_scales.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/wgmma/gathered_rows.cuh"
#include "operations/gemm/cuda/wgmma/grouped_tiles.cuh"
#include "operations/gemm/cuda/wgmma/plan.cuh"
#include "operations/gemm/cuda/wgmma/prologue.cuh"
#include "operations/gemm/cuda/wgmma/ring.cuh"
#include "operations/gemm/cuda/wgmma/stream_k.cuh"
#include "operations/gemm/cuda/wgmma/tile_scheduler.cuh"
#include "operations/gemm/cuda/wgmma/weights.cuh"

namespace tw::gemm {

// The instruction for columns of Element and strips of W's elements. The two differ only if both are FP8.
template <class Element, class W>
TW_FN constexpr WgmmaKind wgmma_kind() {
  if constexpr (same<Element, e4m3>() && same<W, e5m2>())
    return WgmmaKind::e5m2_e4m3;
  else if constexpr (same<Element, e5m2>() && same<W, e4m3>())
    return WgmmaKind::e4m3_e5m2;
  else if constexpr (same<Element, e4m3>())
    return WgmmaKind::e4m3;
  else if constexpr (same<Element, e5m2>())
    return WgmmaKind::e5m2;
  else if constexpr (same<Element, f16>())
    return WgmmaKind::f16;
  else if constexpr (same<Element, bf16>())
    return WgmmaKind::bf16;
  else if constexpr (same<Element, float>())
    return WgmmaKind::tf32;
  else if constexpr (same<Element, signs8>())
    return WgmmaKind::b1;
  else
    return WgmmaKind::s8;
}

// Activations as a launch passes them. operations/gemm/cuda/wgmma/quantized_row.cuh specializes this for floats that a
// block quantizes.
template <class Input>
struct Activations {
  using Format = typename fmt::Unquantized<Input>::type;  // that is multiplied
  TW_CONSTANTS(bool, kQuantizes = false);
};

// Input_: x's format, or fmt::Quantized. knobs.swapped: Input_ is w's format and W_ x's. XRows_: where rows of x and y
// are.
template <class Input_, class W_, class Epi_, const WgmmaKnobs& knobs, class XRows_>
struct WgmmaTraits {
  using XRows = XRows_;
  using Input = Activations<Input_>;
  using X = typename Input::Format;
  using W = typename fmt::Unquantized<W_>::type;
  using Epi = Epi_;
  using Y = typename Epi::Out;
  static constexpr WgmmaKnobs kKnobs = knobs;

  TW_CONSTANTS(int, kBlockM = knobs.block_m, kBlockN = knobs.block_n(), kColumns = knobs.columns(),
               kStrips = knobs.strips, kWarpgroupsN = knobs.warpgroups_n, kWarpgroupsK = knobs.warpgroups_k,
               kPanels = knobs.panels, kStages = knobs.stages, kCluster = knobs.cluster, kSplitK = knobs.split_k,
               kNeighbours = knobs.neighbours(), kParts = knobs.parts(), kMathThreads = knobs.math_threads(),
               kGroups = knobs.groups);
  TW_CONSTANTS(bool, kWarpMma = knobs.warp_mma, kSwapped = knobs.swapped, kAsyncStore = knobs.async_store,
               kGathers = XRows::kGathers, kTransposed = knobs.transposed, kResident = knobs.resident);
  TW_MEMBER static constexpr Schedule schedule() { return knobs.schedule; }

  // ---- operands
  // With fast accumulation tiles may be unpacked to x's element though they are for a wider one.
  TW_CONSTANTS(bool, kNarrows = knobs.fast_accumulation && may_narrow<X, W>());
  using Element = select<kNarrows, element_of<X>, tile_element<X, W>>;
  TW_CONSTANTS(bool, kCodes = same<Element, Codes>());  // x is blocks of bytes with scales
  // w's tiles are for a wider element than x's, as which the producer writes x into the ring, unless a prologue did.
  TW_CONSTANTS(bool, kPrologue = knobs.prologue);
  TW_CONSTANTS(bool, kScalesX = kPrologue && fmt::is_quantized<select<knobs.swapped, W_, Input_>>());  // its rows
  TW_CONSTANTS(bool, kWidens = !kCodes && !kPrologue && !same<Element, element_of<X>>());
  // Blocks that share loads of x. A block widens all of its own.
  TW_CONSTANTS(int, kMulticast = kWidens ? 1 : kNeighbours);
  TW_CONSTANTS(bool, kQuantizes = Input::kQuantizes);
  TW_MEMBER static constexpr WgmmaKind kind() { return wgmma_kind<Element, element_of<W>>(); }
  // Boxes of tokens end where a matrix of fewer rows than a tile does (TensorMapPlan::tile_boxes).
  TW_CONSTANTS(bool, kClips = !kWidens && kGroups == 0 && !kGathers);
  using Weights = typename WeightsOf<X, W, kStrips * kWarpgroupsN, kPanels, kWarpMma ? kColumns : 0, kNarrows,
                                     kClips && kSwapped>::type;
  using Product = select<is_integer(kind()), i32, float>;
  // A panel's products are promoted: they leave the matrix units and are added to sums in single precision. Group
  // scales along k that the operand cannot hold apply to them there, and such sums are better than those of the fp8
  // units.
  TW_CONSTANTS(bool, kPromotes = Weights::kPromotes || (is_fp8(kind()) && !knobs.fast_accumulation));
  using Sum = select<kPromotes, float, Product>;
  using Scales = BlockScales<X, W, kBlockM, kStrips>;
  TW_CONSTANTS(int, kPanelK = Weights::kPanelK, kBlockK = kPanelK * kPanels);
  TW_CONSTANTS(int, kSums = kColumns / 2);  // of a strip, per thread
  using Sums = Sum[kStrips][kSums];
  TW_CONSTANTS(int, kItems = kPanels / kWarpgroupsK);  // a warpgroup's panels of a stage

  // Few tokens: the latency of a launch dominates. With constant weights the next launch's blocks start as soon as
  // there is room for them and load theirs while this one still runs.
  TW_CONSTANTS(bool, kSmallTile = kBlockM <= kFewTokens && !kSwapped);

  // The copy engine takes several times as long for a row of a box beyond the matrix as for one of the matrix. So boxes
  // are clipped where one tile has more rows than the matrix, and else the last tile begins earlier, where all of its
  // rows are the matrix' own, and the rows that an earlier tile stores are computed twice. (Scales of blocks are found
  // by a tile's place; a convolution may have any number of features.)
  TW_CONSTANTS(bool,
               kShifts = !kSmallTile && knobs.parts() == 1 && !kGathers && !BlockScales<X, W, kBlockM, kStrips>::kAny);
  TW_MEMBER static i64 first_token(const Args& args, i64 m0) {
    return kShifts ? min2(m0, max2(i64{0}, args.m - kBlockM)) : m0;
  }
  TW_MEMBER static i64 first_row(const Shape& shape, i64 n0) {
    return kShifts && !Weights::kRegisters ? min2(n0, max2(i64{0}, shape.n - kBlockN)) : n0;
  }

  // The rows of a tile of x from row0 on, where they are gathered.
  template <class Tile>
  TW_MEMBER static Tile tile_rows([[maybe_unused]] const Shape& shape, [[maybe_unused]] i64 row0) {
    if constexpr (kGathers)
      return Tile(shape, row0);
    else
      return {};
  }

  // ---- the plan
  TW_MEMBER static constexpr WgmmaOperands operands() {
    WgmmaOperands o{};
    o.coded = Weights::kRegisters, o.promotes = kPromotes, o.panel_k = kPanelK, o.x_row_bytes = kPanelBytes;
    o.x_item_bytes = fmt::row_bytes<X>();
    if constexpr (kWidens) o.x_raw_bytes = kPanelK * static_cast<int>(sizeof(element_of<X>));
    if constexpr (kCodes) o.x_row_bytes = X::template raw_bytes<128>() / kPanelsPerCodeBox;
    if constexpr (Weights::kRegisters)
      o.code_words = Weights::kStoredWords, o.scale_k = Weights::Tile::kScaleK,
      o.scale_bytes = Weights::Tile::kScaleBytes;
    o.y_bytes = sizeof(Y);
    if constexpr (Epi::kC) o.c_bytes = sizeof(typename Epi::Residual);
    return o;
  }
  static constexpr WgmmaPlan kPlan = wgmma_plan(knobs, operands());
  TW_CONSTANTS(int, kThreads = kPlan.threads, kSharedBytes = kPlan.shared_bytes, kStageBytes = kPlan.stage_bytes,
               kXBytes = kPlan.x_bytes, kRingBytes = kStages * kStageBytes, kStagingBytes = kPlan.staging_bytes,
               kSlice = kPlan.slice, kSlotFloats = kPlan.slot_floats);
  TW_CONSTANTS(bool, kReallocatesRegisters = kPlan.reallocates_registers);

  // ---- x in the workspace
  // With few tokens a block's threads share a row, else a few warps do.
  using WritesX =
      Prologue<select<kSwapped, W_, Input_>, Element, kThreads, kSmallTile ? kThreads : prologue_row_threads(kThreads)>;
  TW_MEMBER static WritesX prologue(const Args& args, const Shape& shape) {
    const Operand& x = kSwapped ? args.w : args.x;
    return {x, kSwapped ? shape.n : args.m, args.ldx ? args.ldx : shape.k, shape.k, static_cast<u8*>(args.workspace)};
  }
  // Where slots for partial sums begin in the workspace.
  TW_MEMBER static i64 slots_at(const Args& args, const Shape& shape) {
    if constexpr (kPrologue)
      return prologue(args, shape).end();
    else
      return kScheduleBytes;
  }

  // ---- the ring
  // x in shared memory: rows of a swizzled panel; or of two panels of blocks as they are stored, whose rows fall into
  // different banks.
  TW_CONSTANTS(int, kPanelsPerBox = kCodes ? kPanelsPerCodeBox : 1);      // panels of a row of x that lie side by side
  TW_CONSTANTS(int, kRowBytes = operands().x_row_bytes * kPanelsPerBox);  // of a box
  // From one panel of an operand to the next.
  TW_CONSTANTS(int, kXPanelBytes = kBlockM * operands().x_row_bytes, kWPanelBytes = kBlockN * kPanelBytes);
  // Boxes of x apart from the stages, which are then panels of w. A block loads its own of what its neighbours do not
  // share.
  TW_CONSTANTS(int, kBoxes = knobs.boxes, kBoxBytes = kPlan.box_bytes);
  TW_CONSTANTS(int, kBoxMulticast = kSwapped ? 1 : kMulticast, kRingMulticast = kBoxes && !kSwapped ? 1 : kMulticast);
  TW_CONSTANTS(int, kBoxRows = kBlockM / kMulticast, kPanelBoxes = kMulticast > 1 ? 1 : kPanels / kPanelsPerBox);

  // ---- registers
  TW_CONSTANTS(bool, kThreeWarpgroups = kWarpgroupsN * kWarpgroupsK == 3);
  // Fragments of coded weights are completed before the last panel's products are waited for, so that unpacking
  // overlaps them. Integer products are converted before they are added, which takes registers late; for fp8 it pays
  // where tiles are largest and Stream-K adds parts of them.
  TW_CONSTANTS(bool, kPromotesCoded = kPromotes && Weights::kRegisters && !kSmallTile);
  TW_CONSTANTS(bool, kFragmentsAhead = kPromotesCoded && (kind() == WgmmaKind::s8 ||
                                                          (kBlockM > 160 && schedule() == Schedule::stream_k)));
  TW_MEMBER static constexpr int math_registers() {
    if (kThreeWarpgroups) return 144;
    const bool short_epilogue = kSwapped && !kAsyncStore;
    if (short_epilogue || (kPromotesCoded && kBlockM > 144 && (kFragmentsAhead || schedule() != Schedule::stream_k)))
      return 232;
    if (kGroups > 0 && kAsyncStore) return 208;  // the storing warps look groups up
    return kFragmentsAhead ? 224 : 216;
  }
  // The producer's addresses take 72; combinations that leave it less were checked for spills.
  TW_CONSTANTS(int, kMathRegisters = math_registers());
  TW_CONSTANTS(int, kProducerRegisters = 65536 / kThreads / 8 * 8 * (kThreads / 128) -
                                         kWarpgroupsN * kWarpgroupsK * kMathRegisters);

  using Ring = StageRing<WgmmaTraits>;
  using Tiles = typename XRows::template TilesOf<
      select<(kGroups > 0), GroupedTiles<kBlockM, kBlockN, kBlockK, kNeighbours, kCluster, kSplitK, kSwapped>,
             ClusterTiles<kBlockM, kBlockN, kBlockK, kNeighbours, kCluster, kSplitK, schedule()>>>::type;
  using Parts = select<(kParts > 1), StreamKBlock<Sum, kBlockM, kBlockN>,
                       StreamK<Sum, kStrips, kSums, kWarpgroupsN, kCluster, kRingBytes>>;

  static_assert(kBlockM <= 256 && (kBlockM == 1 || kBlockM % (8 * kMulticast) == 0),
                "block_m is 1 or whole columns of the matrix instruction in each block's share, and 256 at most");
  static_assert(kBlockM > 1 || (kWarpMma && kMulticast == 1), "a single token's row is read by single warps");
  static_assert(kSplitK == 1 || kSplitK == kCluster, "split_k is 1 or the cluster's size");
  static_assert(kPanels % kWarpgroupsK == 0, "warpgroups along k have equal shares of a stage's panels");
  static_assert(!kWarpMma || (Weights::kRegisters && !is_fp8(kind()) && (kCodes || kBlockM <= 32)),
                "single warps multiply coded weights by 16-bit floats or bytes, of few tokens");
  static_assert(!kCodes || (kWarpMma && Weights::kPromotes && kItems % kPanelsPerBox == 0),
                "codes by codes: single warps, whole boxes for each warpgroup");
  static_assert(!Scales::kAny || (kPromotes && !Weights::kRegisters), "block scales apply to a panel's products");
  static_assert(!kWidens || (Weights::kRegisters && !kSwapped && !kAsyncStore && same<element_of<X>, e4m3>()),
                "E4M3 is widened for coded weights, by threads that would store asynchronously");
  static_assert(!kPrologue || (kGroups == 0 && !kCodes), "a prologue writes rows of one matrix");
  static_assert(!kQuantizes || (kCodes && kBlockM == 1 && knobs.quantized_bytes > 0), "one row of codes is quantized");
  static_assert(kStageBytes % (kCodes || kBlockM == 1 ? 128 : kSwizzleAtom) == 0,
                "stages are aligned as the copy engine writes them, swizzled or as stored");
  static_assert(kGroups == 0 || (schedule() == Schedule::whole_tiles && !kQuantizes && !Epi::kC),
                "groups: whole tiles, x as it is stored, no c");
  static_assert(sizeof(GroupTiles) == kGroupBytes, "the host knows the size of the table");
  static_assert(!kSwapped || kParts == 1, "swapped operands do not split k");
  static_assert(!kSwapped || schedule() == Schedule::whole_tiles, "swapped operands share no tiles");
  static_assert(schedule() != Schedule::split_last_wave || (kNeighbours == 2 && kWarpgroupsN == 2),
                "split_last_wave is for clusters of two blocks of two warpgroups");
  static_assert(schedule() == Schedule::whole_tiles || kParts == 1 ||
                    (schedule() != Schedule::split_last_wave && kCluster == 1),
                "shared tiles: sums of all of k per warpgroup, or of a block without a cluster");
  static_assert(!kGathers || (kParts == 1 && schedule() == Schedule::whole_tiles && kGroups == 0 && !Scales::kAny &&
                              (Weights::kRegisters ? kBoxes == 0 && !kSwapped && !kWidens : !kSmallTile)),
                "gathered rows: whole tiles, of many rows if weights are plain, without boxes if they are in tiles");
  static_assert(!kTransposed || (kGathers && !kAsyncStore && (kSwapped || !kPromotes)),
                "y with features first: of gathered rows");
  static_assert(kBoxes == 0 || (kGathers && !kPromotes), "boxes: gathered rows, sums of all of k");
  static_assert(!kResident || (kBoxes > 0 && kCluster == 1 && kStages % kPanels == 0),
                "what is resident: the panels of w, of blocks by themselves");
  static_assert(schedule() != Schedule::queue || (kSmallTile && kCluster == 1), "the queue is for few tokens");
  static_assert(!kAsyncStore || (kReallocatesRegisters && kParts == 1 && schedule() == Schedule::whole_tiles &&
                                 !Epi::kC && sizeof(Y) <= 2),
                "asynchronous stores: whole tiles of y of two bytes at most, without c, and a producer warpgroup");
};

}  // namespace tw::gemm
