// SPDX-License-Identifier: Apache-2.0
// Plain weights: both operands of the warpgroup instruction are read from shared memory.
#pragma once
#include "operations/gemm/cuda/wgmma/multiply/math_thread.cuh"

namespace tw::gemm {

template <class T>
struct MultiplyShared {
  using Weights = typename T::Weights;
  using Product = typename T::Product;
  using Scales = typename T::Scales;
  using Sums = typename T::Sums;
  using Ring = typename T::Ring;
  using Tiles = typename T::Tiles;
  TW_MEMBER static constexpr WgmmaKind kind() { return T::kind(); }
  TW_CONSTANTS(int, kColumns = T::kColumns, kBlockN = T::kBlockN, kStrips = T::kStrips, kWarpgroupsN = T::kWarpgroupsN,
               kWarpgroupsK = T::kWarpgroupsK, kPanels = T::kPanels, kSums = T::kSums, kItems = T::kItems,
               kXPanelBytes = T::kXPanelBytes, kWPanelBytes = T::kWPanelBytes, kXBytes = T::kXBytes,
               kRun = T::kKnobs.run, kLastSteps = T::kKnobs.last_steps, kStep = T::kKnobs.gathered_step);
  TW_CONSTANTS(bool, kSwapped = T::kSwapped, kPromotes = T::kPromotes);
  TW_CONSTANTS(u32, kPanel = kXPanelBytes / 16);  // in units of a descriptor

  // The matrix units sum over all of k. A stage is released when the next one's products have been issued, so that two
  // stages are in flight.
  TW_MEMBER static void accumulate(Ring& ring, const Tiles& tiles, Sums& sums, u32 x_base, const MathThread& id) {
    if constexpr (T::kBoxes > 0) return accumulate_boxes(ring, tiles, sums, x_base, id);
    int previous = -1;
    TW_NO_UNROLL for (u32 kb = tiles.k_begin; kb < tiles.k_end; kb += kRun) {
      TW_NO_UNROLL for (int i = 1; i < kRun; ++i) accumulate_stage<4>(ring, sums, x_base, id, previous);
      accumulate_stage<kLastSteps>(ring, sums, x_base, id, previous);
    }
    wgmma_wait<0>();
    if (previous >= 0) ring.release(previous, id.lane);
  }
  // STEPS of each panel: 32 bytes of a row.
  template <int STEPS>
  TW_MEMBER static void accumulate_stage(Ring& ring, Sums& sums, u32 x_base, const MathThread& id, int& previous) {
    const u32 x = stage_descriptor<T>(x_base, ring), w = x + kXBytes / 16 + id.group * kStrips * kStripRows * 8;
    ring.await_full();
    wgmma_fence();
    TW_UNROLL for (int i = 0; i < kItems; ++i) {
      const int p = id.group_k * kItems + i;
      TW_UNROLL for (int step = 0; step < STEPS; ++step) TW_UNROLL for (int s = 0; s < kStrips; ++s)
          Wgmma<kind(), kColumns>::ss(sums[s],
                                      w + static_cast<u32>(p * kWPanelBytes + s * kStripRows * 128 + step * 32) / 16,
                                      x + static_cast<u32>(p * kXPanelBytes + step * 32) / 16, true);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the previous stage has been read
    if (previous >= 0) ring.release(previous, id.lane);
    previous = ring.stage;
    ring.advance();
  }

  // The same where x comes in boxes: one for all panels of a stage of k, and stages of the ring are panels of w.
  TW_MEMBER static void accumulate_boxes(Ring& ring, const Tiles& tiles, Sums& sums, u32 x_base, const MathThread& id) {
    int previous = -1, previous_box = -1;
    if constexpr (T::kResident) ring.stage = static_cast<int>(tiles.k_begin) * kPanels;
    TW_NO_UNROLL for (u32 kb = tiles.k_begin; kb < tiles.k_end; kb += kRun) {
      TW_NO_UNROLL for (int i = 1; i < kRun; ++i) accumulate_box<4>(ring, sums, x_base, id, previous, previous_box);
      accumulate_box<kLastSteps>(ring, sums, x_base, id, previous, previous_box);
    }
    wgmma_wait<0>();
    if (previous >= 0) ring.release(previous, id.lane);
    if (previous_box >= 0) ring.boxes.release(previous_box, id.lane);
  }
  template <int STEPS>
  TW_MEMBER static void accumulate_box(Ring& ring, Sums& sums, u32 x_base, const MathThread& id, int& previous,
                                       int& previous_box) {
    const u32 own = id.group * kStrips * kStripRows * 8;  // where a warpgroup's strips begin
    const u32 box = x_base + static_cast<u32>(T::kPlan.box_at + ring.boxes.box * T::kBoxBytes) / 16;
    ring.boxes.await_full();
    TW_UNROLL for (int p = 0; p < kPanels; ++p) {
      const u32 stage = stage_descriptor<T>(x_base, ring), panel = box + static_cast<u32>(p * kStep) / 16;
      const u32 w = (kSwapped ? panel : stage) + own, x = kSwapped ? stage : panel;
      ring.await_full();
      wgmma_fence();
      TW_UNROLL for (int step = 0; step < STEPS; ++step) TW_UNROLL for (int s = 0; s < kStrips; ++s)
          Wgmma<kind(), kColumns>::ss(sums[s], w + static_cast<u32>(s * kStripRows * 128 + step * 32) / 16,
                                      x + static_cast<u32>(step * 32) / 16, true);
      // Where panels of w are resident, nothing waits for them to be read.
      constexpr bool kWhole = T::kResident;
      if (!kWhole || p + 1 == kPanels) {
        wgmma_commit();
        wgmma_wait<1>();  // what came before has been read
        if (previous >= 0) ring.release(previous, id.lane);
        if ((kWhole || p == 0) && previous_box >= 0) ring.boxes.release(previous_box, id.lane);
        previous = ring.stage;
      }
      ring.advance();
    }
    previous_box = ring.boxes.box;
    ring.boxes.advance();
  }

  // Ping-pong: warpgroups that promote take turns with the matrix units, so that one adds while another multiplies.
  // Left to themselves they multiply at the same time and then all add. (Two strips of many tokens without scales have
  // no register left for it.)
  TW_CONSTANTS(bool, kPingPong = kPromotes && !Weights::kRegisters && kColumns > 64 &&
                                 kWarpgroupsN * kWarpgroupsK > 1 && (kStrips == 1 || kSwapped));
  TW_CONSTANTS(u32, kPingPongBarrier = 9);  // the first warpgroup's named barrier; the others' follow
  TW_MEMBER static void await_tensor_cores(const MathThread& id) {
    if constexpr (kPingPong) sync_named(kPingPongBarrier + static_cast<u32>(id.group_k * kWarpgroupsN + id.group), 256);
  }
  TW_MEMBER static void pass_tensor_cores(const MathThread& id) {
    if constexpr (kPingPong)
      arrive_named(kPingPongBarrier +
                       static_cast<u32>((id.group_k * kWarpgroupsN + id.group + 1) % (kWarpgroupsN * kWarpgroupsK)),
                   256);
  }

  // A panel's products are added to the sums outside the matrix units, which another warpgroup uses meanwhile.
  TW_MEMBER static void promote(Ring& ring, const Tiles& tiles, const Scales& scales, Sums& sums, u32 x_base,
                                const MathThread& id) {
    // Scales come from L2, later than a panel's products. Where registers allow, they are fetched a panel ahead into
    // one of two sets of registers; the loop is therefore unrolled by two panels.
    constexpr bool kScalesAhead = Scales::kAny && kSwapped;
    constexpr int kUnrolledStages = kScalesAhead ? 1 + kItems % 2 : 1;
    Product products[kSums];
    typename Scales::Factors factors[2];
    if constexpr (kScalesAhead) factors[0] = scales.at(tiles.k_begin * kPanels);
    for (u32 first = tiles.k_begin; first < tiles.k_end; first += kUnrolledStages)
      TW_UNROLL for (int stage = 0; stage < kUnrolledStages; ++stage) {
        const u32 kb = first + stage;
        if (stage > 0 && kb == tiles.k_end) break;
        ring.await_full();
        const u32 at = stage_descriptor<T>(x_base, ring);
        TW_UNROLL for (int i = 0; i < kItems; ++i) TW_UNROLL for (int s = 0; s < kStrips; ++s) {
          const int p = id.group_k * kItems + i, set = kScalesAhead ? (stage * kItems + i) % 2 : 0;
          if constexpr (Scales::kAny && !kScalesAhead) {
            if (s == 0) factors[0] = scales.at(kb * kPanels + p);
          }
          const u32 x = at + p * kPanel,
                    w = at + kXBytes / 16 + p * (kWPanelBytes / 16) + (id.group * kStrips + s) * kStripRows * 8;
          await_tensor_cores(id);
          wgmma_fence();
          TW_UNROLL for (int step = 0; step < 4; ++step)
              Wgmma<kind(), kColumns>::ss(products, w + step * 2, x + step * 2, step > 0);
          wgmma_commit();
          pass_tensor_cores(id);
          if constexpr (kScalesAhead) {
            if (s == 0) factors[1 - set] = scales.at(kb * kPanels + p + 1);
          }
          wgmma_wait<0>();
          if (i + 1 == kItems && s + 1 == kStrips) ring.release(ring.stage, id.lane);
          TW_UNROLL for (int j = 0; j < kSums; ++j) {
            if constexpr (Scales::kAny)
              sums[s][j] += factors[set].of(s, j) * products[j];
            else
              sums[s][j] += products[j];
          }
        }
        ring.advance();
      }
  }
};

}  // namespace tw::gemm
