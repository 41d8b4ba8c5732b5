// SPDX-License-Identifier: Apache-2.0
// Coded weights: unpacked by math threads into the register operand of the warpgroup instruction.
#pragma once
#include "formats/shared/tiles.cuh"
#include "operations/gemm/cuda/wgmma/multiply/math_thread.cuh"

namespace tw::gemm {

template <class T>
struct MultiplyRegisters {
  using Weights = typename T::Weights;
  using Product = typename T::Product;
  using Sums = typename T::Sums;
  using Ring = typename T::Ring;
  using Tiles = typename T::Tiles;
  TW_MEMBER static constexpr WgmmaKind kind() { return T::kind(); }
  TW_CONSTANTS(int, kColumns = T::kColumns, kStrips = T::kStrips, kSums = T::kSums, kItems = T::kItems,
               kXPanelBytes = T::kXPanelBytes, kStageBytes = T::kStageBytes);

  TW_CONSTANTS(u32, kPanel = kXPanelBytes / 16);  // in units of a descriptor

  // The matrix units sum over all of k. A batch of fragments is unpacked while the previous one multiplies: a whole
  // panel if registers hold the fragments of two, else a step. Codes are read from shared memory one panel ahead.
  TW_MEMBER static void accumulate(Ring& ring, const Tiles& tiles, Sums& sums, u32 x_base, const MathThread& id) {
    constexpr int kBatches = kItems * kStrips;
    constexpr bool kWhole = kStrips * kSums <= 64 && kBatches % 2 == 0;
    u32 a[kWhole ? 2 : 1][4][4];  // read by products until the last wait
    u32 words[2][Weights::kWords];
    typename Weights::Tile::Scales scales[2];
    int previous = -1;
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      const u32 x_stage = stage_descriptor<T>(x_base, ring);
      ring.await_full();
      const auto read = [&](int item) {
        const int i = item / kStrips, strip = id.group * kStrips + item % kStrips;
        Weights::template read_codes<kItems>(ring.w(), strip, id.group_k, i, id.thread % 128, words[item % 2]);
        scales[item % 2] = Weights::template read_scales<kItems>(ring.w(), strip, kb, id.group_k, i, id.thread % 128);
      };
      read(0);
      TW_UNROLL for (int item = 0; item < kBatches; ++item) {
        const int p = id.group_k * kItems + item / kStrips, s = item % kStrips;
        const u32 x = x_stage + p * kPanel;
        if (item + 1 < kBatches) read(item + 1);
        if constexpr (kWhole) {
          u32(&batch)[4][4] = a[item % 2];
          wgmma_wait<4>();  // the products that read this batch are complete
          if (item == 1 && previous >= 0) ring.release(previous, id.lane);
          TW_UNROLL for (int step = 0; step < 4; ++step)
              Weights::Tile::fragment(words[item % 2], step, scales[item % 2], batch[step]),
              pin(batch[step]);
          TW_UNROLL for (int step = 0; step < 4; ++step) {
            wgmma_fence();
            Wgmma<kind(), kColumns>::rs(sums[s], batch[step], x + step * 2, true);
            wgmma_commit();
          }
        } else {
          TW_UNROLL for (int step = 0; step < 4; ++step) {
            wgmma_wait<3>();
            if (item == 0 && step == 3 && previous >= 0) ring.release(previous, id.lane);
            Weights::Tile::fragment(words[item % 2], step, scales[item % 2], a[0][step]);
            wgmma_fence();
            Wgmma<kind(), kColumns>::rs(sums[s], a[0][step], x + step * 2, true);
            wgmma_commit();
          }
        }
      }
      previous = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    if (previous >= 0) ring.release(previous, id.lane);
  }

  // A panel's products are complete before its scales apply; another warpgroup uses the matrix units meanwhile. The
  // next panel's fragments are unpacked while this one's multiply.
  TW_MEMBER static void promote(Ring& ring, const Tiles& tiles, Sums& sums, u32 x_base, const MathThread& id) {
    static_assert(kStrips == 1 && kItems % 2 == 0,
                  "one strip, and an even number of panels per warpgroup: two sets of fragments alternate");
    if (tiles.k_begin >= tiles.k_end) return;
    u32 a[2][4][4];
    typename Weights::Tile::Scales scales[2];
    Product products[kSums];
    const auto unpack = [&](const Ring& from, u32 kb, int i, u32(&to)[4][4],
                            typename Weights::Tile::Scales& to_scales) {
      u32 words[Weights::kWords];
      Weights::template read_codes<kItems>(from.w(), id.group, id.group_k, i, id.thread % 128, words);
      to_scales = Weights::template read_scales<kItems>(from.w(), id.group, kb, id.group_k, i, id.thread % 128);
      TW_UNROLL for (int step = 0; step < 4; ++step) {
        Weights::Tile::fragment(words, step, to_scales, to[step]);
        pin(to[step]);
      }
    };
    ring.await_full();
    unpack(ring, tiles.k_begin, 0, a[0], scales[0]);
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      const u32 x_stage = stage_descriptor<T>(x_base, ring) + id.group_k * kItems * kPanel;
      TW_UNROLL for (int i = 0; i < kItems; ++i) {
        // With many tokens the descriptor is computed anew: ptxas then orders the loop so that the fastest kernels take
        // up to 6 % less.
        const u32 x = T::kSmallTile
                          ? x_stage + i * kPanel
                          : x_base + (ring.stage * kStageBytes + (id.group_k * kItems + i) * kXPanelBytes) / 16;
        wgmma_fence();
        TW_UNROLL for (int step = 0; step < 4; ++step)
            Wgmma<kind(), kColumns>::rs(products, a[i % 2][step], x + step * 2, step > 0);
        wgmma_commit();
        Ring next = ring;
        u32 next_kb = kb;
        if (i + 1 == kItems && kb + 1 < tiles.k_end) {
          next.advance(), ++next_kb;
          next.await_full();
        }
        // After the last panel the same one is unpacked again, and not used.
        unpack(next, next_kb, (i + 1) % kItems, a[(i + 1) % 2], scales[(i + 1) % 2]);
        if constexpr (T::kFragmentsAhead)
          TW_UNROLL for (int step = 0; step < 4; ++step)
              complete(a[(i + 1) % 2][step], static_cast<i32>(kb) < 0, ring.stages);
        wgmma_wait<0>();
        if (i + 1 == kItems) ring.release(ring.stage, id.lane);
        TW_UNROLL for (int j = 0; j < kSums; ++j) sums[0][j] +=
            row_scale(scales[i % 2], j % 4 / 2) * static_cast<float>(products[j]);
      }
      ring.advance();
    }
  }

 private:
  TW_MEMBER static float row_scale(const typename Weights::Tile::Scales& scales, int row) {
    if constexpr (Weights::kPromotes)
      return Weights::Tile::row_scale(scales, row);
    else
      return 1.0f;
  }
};

}  // namespace tw::gemm
