// SPDX-License-Identifier: Apache-2.0
// What the warpgroup kernel's parts know of one instantiation at compile time: operand types, the plan, and constants
// that follow from both.
#pragma once
#include "arch/sm90.cuh"
#include "core/format.cuh"
#include "gemm/block_scales.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/operands.cuh"
#include "gemm/wgmma/plan.cuh"
#include "gemm/wgmma/ring.cuh"
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
// The instruction for columns of Element and strips of W's elements. The two differ only if both are FP8.
template <class Element, class W>
TW_FN constexpr WgmmaKind wgmma_kind() {
  if constexpr (same<Element, e4m3> && same<W, e5m2>)
    return WgmmaKind::e5m2_e4m3;
  else if constexpr (same<Element, e5m2> && same<W, e4m3>)
    return WgmmaKind::e4m3_e5m2;
  else
    return KindOf<Element>::value;
}

// Activations as a launch passes them. gemm/wgmma/quantized_row.cuh specializes this for floats that a block quantizes.
template <class Input>
struct Activations {
  using Format = Input;  // that is multiplied
  static constexpr bool kQuantizes = false;
};

// Input: x's format, or fmt::Quantized. knobs.swapped: Input is w's format and Weights_ x's.
template <class Input_, class W_, class Epi_, const WgmmaKnobs& knobs>
struct WgmmaTraits {
  using Input = Activations<Input_>;
  using X = typename Input::Format;
  using W = W_;
  using Epi = Epi_;
  using Y = typename Epi::Out;
  static constexpr WgmmaKnobs kKnobs = knobs;

  static constexpr int kBlockM = knobs.block_m, kBlockN = knobs.block_n(), kColumns = knobs.columns(),
                       kStrips = knobs.strips, kWarpgroupsN = knobs.warpgroups_n, kWarpgroupsK = knobs.warpgroups_k,
                       kPanels = knobs.panels, kStages = knobs.stages, kCluster = knobs.cluster,
                       kSplitK = knobs.split_k, kMulticast = knobs.multicast(), kParts = knobs.parts(),
                       kMathThreads = knobs.math_threads();
  static constexpr bool kWarpMma = knobs.warp_mma, kSwapped = knobs.swapped, kAsyncStore = knobs.async_store;
  static constexpr Schedule kSchedule = knobs.schedule;

  // ---- operands
  using Element = tile_element<X>;
  static constexpr bool kCodes = same<Element, Codes>;  // x is blocks of bytes with scales
  static constexpr bool kQuantizes = Input::kQuantizes;
  static constexpr WgmmaKind kKind = wgmma_kind<Element, element_of<W>>();
  using Weights = typename WeightsOf<X, W, kStrips * kWarpgroupsN, kPanels, kWarpMma ? kColumns : 0>::type;
  using Product = select<kKind == WgmmaKind::s8, i32, float>;
  // A panel's products are promoted: they leave the matrix units and are added to sums in single precision. Group
  // scales along k that the operand cannot hold apply to them there, and such sums are better than those of the fp8
  // units.
  static constexpr bool kPromotes = Weights::kPromotes || (is_fp8(kKind) && !knobs.fast_accumulation);
  using Sum = select<kPromotes, float, Product>;
  using Scales = BlockScales<X, W, kBlockM, kStrips>;
  static constexpr int kPanelK = Weights::kPanelK, kBlockK = kPanelK * kPanels;
  static constexpr int kSums = kColumns / 2;  // of a strip, per thread
  using Sums = Sum[kStrips][kSums];
  static constexpr int kItems = kPanels / kWarpgroupsK;  // a warpgroup's panels of a stage

  // Few tokens: the latency of a launch dominates. With constant weights the next launch's blocks start as soon as
  // there is room for them and load theirs while this one still runs.
  static constexpr bool kSmallTile = kBlockM <= kFewTokens && !kSwapped;

  // ---- the plan
  TW_MEMBER static constexpr WgmmaOperands operands() {
    WgmmaOperands o{};
    o.coded = Weights::kRegisters, o.promotes = kPromotes, o.panel_k = kPanelK, o.x_row_bytes = kPanelBytes;
    o.x_item_bytes = fmt::row_bytes<X>;
    if constexpr (kCodes) o.x_row_bytes = X::template raw_bytes<128>() / kPanelsPerCodeBox;
    if constexpr (Weights::kRegisters)
      o.code_words = Weights::kWords, o.scale_k = Weights::Tile::kScaleK, o.scale_bytes = Weights::Tile::kScaleBytes;
    o.y_bytes = sizeof(Y);
    if constexpr (Epi::kC) o.c_bytes = sizeof(typename Epi::Residual);
    return o;
  }
  static constexpr WgmmaPlan kPlan = wgmma_plan(knobs, operands());
  static constexpr int kThreads = kPlan.threads, kSharedBytes = kPlan.shared_bytes, kStageBytes = kPlan.stage_bytes,
                       kXBytes = kPlan.x_bytes, kRingBytes = kStages * kStageBytes, kStagingBytes = kPlan.staging_bytes,
                       kSlice = kPlan.slice, kSlotFloats = kPlan.slot_floats;
  static constexpr bool kReallocatesRegisters = kPlan.reallocates_registers;

  // x in shared memory: rows of a swizzled panel; or of two panels of blocks as they are stored, whose rows fall into
  // different banks.
  static constexpr int kPanelsPerBox = kCodes ? kPanelsPerCodeBox : 1;  // panels of a row of x that lie side by side
  static constexpr int kRowBytes = operands().x_row_bytes * kPanelsPerBox;  // of a box
  static constexpr int kXPanelBytes = kBlockM * operands().x_row_bytes;
  static constexpr int kXCopied = kQuantizes ? 0 : kPanels * kXPanelBytes;  // per stage
  static constexpr int kBoxRows = kBlockM / kMulticast, kPanelBoxes = kMulticast > 1 ? 1 : kPanels / kPanelsPerBox;

  // ---- registers
  static constexpr bool kThreeWarpgroups = kWarpgroupsN * kWarpgroupsK == 3;
  // Fragments of coded weights are completed before the last panel's products are waited for, so that unpacking
  // overlaps them. Integer products are converted before they are added, which takes registers late; for fp8 it pays
  // where tiles are largest and Stream-K adds parts of them.
  static constexpr bool kPromotesCoded = kPromotes && Weights::kRegisters && !kSmallTile;
  static constexpr bool kFragmentsAhead =
      kPromotesCoded && (kKind == WgmmaKind::s8 || (kBlockM > 160 && kSchedule == Schedule::stream_k));
  TW_MEMBER static constexpr int math_registers() {
    if (kThreeWarpgroups) return 144;
    const bool short_epilogue = kSwapped && !kAsyncStore;
    if (short_epilogue || (kPromotesCoded && kBlockM > 144 && (kFragmentsAhead || kSchedule != Schedule::stream_k)))
      return 232;
    return kFragmentsAhead ? 224 : 216;
  }
  // The producer's addresses take 72; combinations that leave it less were checked for spills.
  static constexpr int kMathRegisters = math_registers();
  static constexpr int kProducerRegisters =
      65536 / kThreads / 8 * 8 * (kThreads / 128) - kWarpgroupsN * kWarpgroupsK * kMathRegisters;

  using Ring = StageRing<WgmmaTraits>;
  using Tiles = ClusterTiles<kBlockM, kBlockN, kBlockK, kMulticast, kCluster, kSplitK, kSchedule>;
  using Parts = select<(kParts > 1), StreamKBlock<Sum, kBlockM, kBlockN>,
                       StreamK<Sum, kStrips, kSums, kWarpgroupsN, kCluster, kRingBytes>>;

  static_assert(kBlockM <= 256 && (kBlockM == 1 || kBlockM % (8 * kMulticast) == 0),
                "block_m is 1 or whole columns of the matrix instruction in each block's share, and 256 at most");
  static_assert(kBlockM > 1 || (kWarpMma && kMulticast == 1), "a single token's row is read by single warps");
  static_assert(kSplitK == 1 || kSplitK == kCluster, "split_k is 1 or the cluster's size");
  static_assert(kPanels % kWarpgroupsK == 0, "warpgroups along k have equal shares of a stage's panels");
  static_assert(!kWarpMma || (Weights::kRegisters && !is_fp8(kKind) && (kCodes || kBlockM <= 32)),
                "single warps multiply coded weights by 16-bit floats or bytes, of few tokens");
  static_assert(!kCodes || (kWarpMma && Weights::kPromotes && kItems % kPanelsPerBox == 0),
                "codes by codes: single warps, whole boxes for each warpgroup");
  static_assert(!Scales::kAny || (kPromotes && !Weights::kRegisters), "block scales apply to a panel's products");
  static_assert(!kQuantizes || (kCodes && kBlockM == 1 && knobs.quantized_bytes > 0), "one row of codes is quantized");
  static_assert(kStageBytes % (kCodes || kBlockM == 1 ? 128 : kSwizzleAtom) == 0,
                "stages are aligned as the copy engine writes them, swizzled or as stored");
  static_assert(!kSwapped || kParts == 1, "swapped operands do not split k");
  static_assert(!kSwapped || kSchedule == Schedule::whole_tiles, "swapped operands share no tiles");
  static_assert(kSchedule != Schedule::split_last_wave || (kMulticast == 2 && kWarpgroupsN == 2),
                "split_last_wave is for clusters of two blocks of two warpgroups");
  static_assert(kSchedule == Schedule::whole_tiles || kParts == 1 ||
                    (kSchedule != Schedule::split_last_wave && kCluster == 1),
                "shared tiles: sums of all of k per warpgroup, or of a block without a cluster");
  static_assert(kSchedule != Schedule::queue || (kSmallTile && kCluster == 1), "the queue is for few tokens");
  static_assert(!kAsyncStore || (kReallocatesRegisters && kParts == 1 && kSchedule == Schedule::whole_tiles &&
                                 !Epi::kC && sizeof(Y) <= 2),
                "asynchronous stores: whole tiles of y of two bytes at most, without c, and a producer warpgroup");
};

}  // namespace tw::gemm
