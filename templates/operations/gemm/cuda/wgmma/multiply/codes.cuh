// SPDX-License-Identifier: Apache-2.0
// Codes by codes: x is blocks of signed bytes with a scale each, w coded. Single warps multiply integers with mma.sync;
// a group's products are exact, and the scales of both sides apply to them.
#pragma once
#include "formats/shared/tiles.cuh"
#include "operations/gemm/cuda/wgmma/multiply/math_thread.cuh"

namespace tw::gemm {

template <class T>
struct MultiplyCodes {
  using X = typename T::X;
  using Weights = typename T::Weights;
  using Tile = typename Weights::Tile;
  using Sums = typename T::Sums;
  using Ring = typename T::Ring;
  using Tiles = typename T::Tiles;
  TW_CONSTANTS(int, kStrips = T::kStrips, kItems = T::kItems, kXPanelBytes = T::kXPanelBytes,
               kStageBytes = T::kStageBytes, kRowBytes = T::kRowBytes, kPanelsPerBox = T::kPanelsPerBox);
  TW_CONSTANTS(int, kGroups = 2, kBlock = X::kDataBytes);  // groups of a panel; bytes of one of x's
  static_assert(kRowBytes == kPanelsPerBox * kGroups * kBlock && Tile::kGroups <= kGroups, "x is blocks of 32 bytes");

  // x's blocks are read as they are stored, two panels of a row together. A lane holds codes of token lane / 4, and
  // products of tokens 2 (lane % 4) and the next.
  TW_MEMBER static void multiply_tokens(Ring& ring, const Tiles& tiles, Sums& sums, const MathThread& id) {
    const u8* const own = ring.stages + id.group_k * (kItems * kXPanelBytes);
    const u8* const codes = own + id.lane / 4 * kRowBytes + X::kCodesAt + id.lane % 4 * 2;
    const u8* const scales_of_x = own + id.lane % 4 * 2 * kRowBytes;
    // An integer sum of products (2^20 at most), added to 1.5 2^23 by the instruction, has the bits of a float. One
    // fused multiply-add then scales it and subtracts the scaled 1.5 2^23: rounded once, without a conversion. (ptxas
    // would move four constants before each product if it knew that these are.)
    constexpr float kUnits = 12582912.0f;
    i32 none[4];
    TW_UNROLL for (int j = 0; j < 4; ++j) none[j] = bits_as<i32>(kUnits) + static_cast<i32>(tiles.k_end >> (28 + j));
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      ring.await_full();
      const int stage = ring.stage * kStageBytes;
      TW_UNROLL_BY(kPanelsPerBox) for (int i = 0; i < kItems; ++i) {
        const int panel =
            stage + i / kPanelsPerBox * (kPanelsPerBox * kXPanelBytes) + i % kPanelsPerBox * (kGroups * kBlock);
        u32 words[kStrips][Weights::kWords];
        typename Tile::Scales scales[kStrips];
        TW_UNROLL for (int s = 0; s < kStrips; ++s) {
          const int strip = id.group * kStrips + s;
          Weights::template read_codes<kItems>(ring.w(), strip, id.group_k, i, id.thread % 128, words[s]);
          scales[s] = Weights::template read_scales<kItems>(ring.w(), strip, kb, id.group_k, i, id.thread % 128);
        }
        TW_UNROLL for (int g = 0; g < kGroups; ++g) {
          u32 a[kStrips][4];
          float of_w[kStrips][2], less[kStrips][2];
          TW_UNROLL for (int s = 0; s < kStrips; ++s) {
            Tile::Bytes::fragment(words[s], g, a[s]);
            TW_UNROLL for (int row = 0; row < 2; ++row) of_w[s][row] = Tile::row_scale(scales[s], row, 2 * g),
                                                        less[s][row] = -kUnits * of_w[s][row];
          }
          TW_UNROLL for (int t = 0; t < T::kColumns / 8; ++t) {
            const int at = panel + g * kBlock + t * 8 * kRowBytes;
            u32 b[2];
            read_codes_of_x(codes + at, b);
            float of_x[2];
            TW_UNROLL for (int token = 0; token < 2; ++token) of_x[token] =
                low_half<f16>(read_pair(scales_of_x + at + token * kRowBytes));
            float sum_of_x[2];
            if constexpr (Tile::kOffset) {
              i32 codes_of_x[4] = {};  // their sums, the same in all rows
              constexpr u32 kOnes[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
              mma_s8_k32(codes_of_x, kOnes, b);
              TW_UNROLL for (int token = 0; token < 2; ++token) sum_of_x[token] =
                  of_x[token] * static_cast<float>(codes_of_x[token]);
            }
            TW_UNROLL for (int s = 0; s < kStrips; ++s) {
              i32 products[4];
              mma_s8_k32(products, a[s], b, none);
              TW_UNROLL for (int j = 0; j < 4; ++j) sums[s][4 * t + j] +=
                  fma_rn(bits_as<float>(products[j]), of_w[s][j / 2], less[s][j / 2]) * of_x[j % 2];
              if constexpr (Tile::kOffset)
                TW_UNROLL for (int j = 0; j < 4; ++j) sums[s][4 * t + j] +=
                    Tile::row_minimum(scales[s], j / 2, 2 * g) * sum_of_x[j % 2];
            }
          }
        }
      }
      ring.release(ring.stage, id.lane);
      ring.advance();
    }
  }

  // A single token: groups of k take the place of tokens. Each of eight groups in turn is multiplied by its part of x
  // in one column and zeros in the others, so that the products of all eight lie side by side, and scales apply to
  // eight groups at once. A lane holds codes of the group of column lane / 4, and products of groups 2 (lane % 4) and
  // the next.
  TW_MEMBER static void multiply_row(Ring& ring, const Tiles& tiles, Sums& sums, const MathThread& id) {
    static_assert(kItems % kRowPanels == 0, "a warpgroup's panels are whole columns of groups");
    const int column = id.lane / 4, pair = id.lane % 4;
    const u8* const own = (T::kQuantizes ? ring.row : ring.stages) + id.group_k * (kItems * kXPanelBytes);
    const u8* const codes = own + column * kBlock + X::kCodesAt + pair * 2;
    const u8* const scales_of_x = own + pair * kGroups * kBlock;
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      ring.await_full();
      const int stage = T::kQuantizes ? static_cast<int>(kb - ring.row_begin) * (T::kPanels * kXPanelBytes)
                                      : ring.stage * kStageBytes;
      TW_UNROLL for (int first = 0; first < kItems; first += kRowPanels) {
        const int at = stage + first * kXPanelBytes;
        u32 b[2];
        read_codes_of_x(codes + at, b);
        i32 products[kStrips][4] = {}, codes_of_x[4] = {};  // the latter the same in all rows
        TW_UNROLL for (int i = 0; i < kRowPanels; ++i) {
          u32 words[kStrips][Weights::kWords];
          TW_UNROLL for (int s = 0; s < kStrips; ++s) Weights::template read_codes<kItems>(
              ring.w(), id.group * kStrips + s, id.group_k, first + i, id.thread % 128, words[s]);
          TW_UNROLL for (int g = 0; g < kGroups; ++g) {
            const bool own_column = column == i * kGroups + g;
            const u32 only[2] = {own_column ? b[0] : 0u, own_column ? b[1] : 0u};
            TW_UNROLL for (int s = 0; s < kStrips; ++s) {
              u32 a[4];
              Tile::Bytes::fragment(words[s], g, a);
              mma_s8_k32(products[s], a, only);
            }
            if constexpr (Tile::kOffset) {
              constexpr u32 kOnes[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
              mma_s8_k32(codes_of_x, kOnes, only);
            }
          }
        }
        float of_x[kGroups];
        TW_UNROLL for (int g = 0; g < kGroups; ++g) of_x[g] = low_half<f16>(read_pair(scales_of_x + at + g * kBlock));
        TW_UNROLL for (int s = 0; s < kStrips; ++s) {
          const typename Tile::Scales scales = Weights::template read_scales<kItems>(
              ring.w(), id.group * kStrips + s, kb, id.group_k, first + pair, id.thread % 128);
          TW_UNROLL for (int j = 0; j < 4; ++j) {
            const int row = j / 2, g = j % 2;
            sums[s][j] += (Tile::row_scale(scales, row, 2 * g) * of_x[g]) * static_cast<float>(products[s][j]);
            if constexpr (Tile::kOffset)
              sums[s][j] += Tile::row_minimum(scales, row, 2 * g) * (of_x[g] * static_cast<float>(codes_of_x[j]));
          }
        }
      }
      ring.release(ring.stage, id.lane);
      ring.advance();
    }
    add_columns(sums);
  }

 private:
  // The token's sums are those of all columns.
  TW_MEMBER static void add_columns(Sums& sums) {
    TW_UNROLL for (int s = 0; s < kStrips; ++s) TW_UNROLL for (int row = 0; row < 2; ++row) {
      float sum = sums[s][2 * row] + sums[s][2 * row + 1];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      sums[s][2 * row] = sums[s][2 * row + 1] = sum;
    }
  }
  TW_MEMBER static void read_codes_of_x(const u8* codes, u32 (&b)[2]) {
    TW_UNROLL for (int h = 0; h < 2; ++h) b[h] =
        prmt(read_pair(codes + 16 * h), read_pair(codes + 16 * h + 8), Tile::Bytes::kOrder);
  }
  TW_MEMBER static u32 read_pair(const u8* at) { return *reinterpret_cast<const u16*>(at); }
};

}  // namespace tw::gemm
