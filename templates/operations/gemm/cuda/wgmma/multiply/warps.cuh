// SPDX-License-Identifier: Apache-2.0
// Coded weights and few tokens: single warps multiply with mma.sync. Fragments are those of the warpgroup instruction,
// a quarter of it per warp; x is read with ldmatrix.
#pragma once
#include "formats/shared/tiles.cuh"
#include "operations/gemm/cuda/wgmma/multiply/math_thread.cuh"

namespace tw::gemm {

template <class T>
struct MultiplyWarps {
  using Element = typename T::Element;
  using Weights = typename T::Weights;
  using Tile = typename Weights::Tile;
  using Product = typename T::Product;
  using Sums = typename T::Sums;
  using Ring = typename T::Ring;
  using Tiles = typename T::Tiles;
  TW_MEMBER static constexpr WgmmaKind kind() { return T::kind(); }
  TW_CONSTANTS(int, kStrips = T::kStrips, kItems = T::kItems, kXPanelBytes = T::kXPanelBytes,
               kStageBytes = T::kStageBytes, kTokens = T::kColumns / 8);
  TW_CONSTANTS(int, kXGroups = x_groups<Tile>());  // of a panel, whose sums of x weights with minima need

  using Products = Product[kTokens][4];

  // A panel's columns of x, as the instruction takes them.
  struct Panel {
    u32 b[kTokens][2][4];

    TW_MEMBER void multiply(int step, const u32 (&a)[4], Products& products) const {
      TW_UNROLL for (int t = 0; t < kTokens; ++t) {
        const u32 pair[2] = {b[t][step / 2][step % 2 * 2], b[t][step / 2][step % 2 * 2 + 1]};
        if constexpr (kind() == WgmmaKind::s8)
          mma_s8_k32(products[t], a, pair);
        else
          mma_k16<Element>(products[t], a, pair);
      }
    }
  };

  TW_MEMBER static void accumulate(Ring& ring, const Tiles& tiles, Sums& sums, const MathThread& id) {
    [[maybe_unused]] constexpr int kAtOnce =
        kXGroups > 0 ? 2 / kStrips : kItems;  // panels; with more in flight registers run out
    // This lane's two 16-byte pieces of a panel of x.
    const int row = T::kBlockM == 1 ? 0 : id.lane % 8;
    const u8* const own = ring.stages + id.group_k * (kItems * kXPanelBytes) + row * 128;
    const u8* const pieces[2] = {own + ((id.lane / 8) ^ row) * 16, own + ((4 + id.lane / 8) ^ row) * 16};
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      ring.await_full();
      const int stage = ring.stage * kStageBytes;
      const SharedRows rows[2] = {SharedRows(pieces[0] + stage), SharedRows(pieces[1] + stage)};
      TW_UNROLL_BY(kAtOnce) for (int i = 0; i < kItems; ++i) {
        Panel x;
        TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int h = 0; h < 2; ++h) rows[h].ldmatrix_x4(
            x.b[t][h], i * kXPanelBytes + t * 1024);
        Product x_sums[max2(1, kXGroups)][kTokens][4] = {};  // the same in all rows
        if constexpr (kXGroups > 0) {
          static_assert(same<Element, bf16>(), "sums of x are products by ones of bf16");
          constexpr u32 kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
          TW_UNROLL for (int step = 0; step < 4; ++step) x.multiply(step, kOnes, x_sums[step * kXGroups / 4]);
        }
        TW_UNROLL for (int s = 0; s < kStrips; ++s) {
          const int strip = id.group * kStrips + s;
          u32 words[Weights::kWords];
          Weights::template read_codes<kItems>(ring.w(), strip, id.group_k, i, id.thread % 128, words);
          const typename Tile::Scales scales =
              Weights::template read_scales<kItems>(ring.w(), strip, kb, id.group_k, i, id.thread % 128);
          if constexpr (T::kPromotes)
            promote(sums[s], x, x_sums, words, scales);
          else
            add(sums[s], x, words, scales);
        }
      }
      ring.release(ring.stage, id.lane);
      ring.advance();
    }
  }

 private:
  TW_MEMBER static void multiply_weights(int step, const u32 (&words)[Weights::kWords],
                                         const typename Tile::Scales& scales, const Panel& x, Products& products) {
    u32 a[4];
    Tile::fragment(words, step, scales, a);
    x.multiply(step, a, products);
  }

  // Fragments hold scaled weights: products go straight into a strip's sums.
  template <class Sum, int sums>
  TW_MEMBER static void add(Sum (&to)[sums], const Panel& x, const u32 (&words)[Weights::kWords],
                            const typename Tile::Scales& scales) {
    Products products;
    TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int j = 0; j < 4; ++j) products[t][j] =
        static_cast<Product>(to[4 * t + j]);
    TW_UNROLL for (int step = 0; step < 4; ++step) multiply_weights(step, words, scales, x, products);
    TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int j = 0; j < 4; ++j) to[4 * t + j] = products[t][j];
  }

  // Fragments hold codes: scales, and minima times sums of x, apply to each group's products.
  template <class Sum, int sums>
  TW_MEMBER static void promote(Sum (&to)[sums], const Panel& x, const Product (&x_sums)[max2(1, kXGroups)][kTokens][4],
                                const u32 (&words)[Weights::kWords], const typename Tile::Scales& scales) {
    constexpr int kGroups = Tile::kGroups, kSteps = 4 / kGroups;  // of a panel, and steps of each
    TW_UNROLL for (int g = 0; g < kGroups; ++g) {
      Product products[kTokens][4] = {};
      TW_UNROLL for (int step = g * kSteps; step < (g + 1) * kSteps; ++step)
          multiply_weights(step, words, scales, x, products);
      TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int j = 0; j < 4; ++j) {
        if constexpr (kXGroups > 0) to[4 * t + j] += Tile::row_minimum(scales, j / 2, g * kSteps) * x_sums[g][t][j];
        to[4 * t + j] += Tile::row_scale(scales, j / 2, g * kSteps) * static_cast<float>(products[t][j]);
      }
    }
  }
};

}  // namespace tw::gemm
