// SPDX-License-Identifier: Apache-2.0
// FP8 with a float scale per 128 columns of a row (e4m3_g128) or of 128 rows (e4m3_b128): kernels multiply a panel's
// products by them when they add the products up, a panel being 128 columns too. They come straight from global memory:
// a cache line of them is 32 panels', so most come from L1.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::gemm {

// Elements with a scale for several of them.
template <class F>
TW_FN constexpr bool block_scaled() {
  return !same<typename F::Element, void>() && F::kScaleBytes > 0;
}

// The rows of a matrix that the scales belong to: how many there are, elements from one to the next, and the tile's
// first.
struct ScaledRows {
  const void* scales;
  i64 count, stride, first;
};

// The scales that one thread needs. X is the operand whose rows are columns of the instruction, BM of them in a tile; W
// the one whose rows are strips, of HEIGHT rows for a warpgroup's or a warp's instruction. An operand without block
// scales costs nothing.
template <class X, class W, int BM, int STRIPS, int HEIGHT = 64>
struct BlockScales {
  TW_CONSTANTS(bool, kOfX = block_scaled<X>(), kOfW = block_scaled<W>(), kAny = kOfX || kOfW);
  TW_CONSTANTS(int, kRowsX = X::kScaleRows, kRowsW = W::kScaleRows);
  static_assert((kRowsX == 1 || (kRowsX % 64 == 0 && (BM % 64 == 0 || 64 % BM == 0))) &&
                    (kRowsW == 1 || kRowsW % 64 == 0),
                "64 rows share one scale");
  TW_CONSTANTS(int, kSharedX = kRowsX == 1        ? 1
                               : BM % kRowsX == 0 ? kRowsX
                                                  : min2(BM, 64));  // columns of a tile under one scale
  TW_CONSTANTS(int, kX = !kOfX ? 0 : kSharedX > 1 ? ceil_div(BM, kSharedX) : BM / 4);
  TW_CONSTANTS(int, kW = !kOfW ? 0 : kRowsW > 1 ? 1 : 2);  // of a strip

  // The factors of a panel. Product i of a thread is that of column 8 (i / 4) + i % 2 and row 8 (i % 4 / 2), counted
  // from the thread's first.
  struct Factors {
    float x[max2(1, kX)], w[STRIPS][max2(1, kW)];
    TW_MEMBER float of(int strip, int i) const {
      const float of_w = kW == 0 ? 1.0f : w[strip][kW == 1 ? 0 : i % 4 / 2];
      return kX == 0 ? of_w : of_w * x[kSharedX > 1 ? i / 4 * 8 / kSharedX : i / 4 * 2 + i % 2];
    }
  };

  const float *x = nullptr, *w = nullptr;            // of the tile's first row
  u32 x_at[max2(1, kX)], w_at[STRIPS][max2(1, kW)];  // from there; there are fewer than 2^24 panels
  u32 last = 0;                                      // panel

  // row, column: this thread's first within the tile.
  TW_MEMBER BlockScales(const ScaledRows& of_x, const ScaledRows& of_w, i64 k, int column, int row) {
    last = static_cast<u32>(k / 128 - 1);
    if constexpr (kOfX) {
      x = begin<kRowsX>(of_x);
      TW_UNROLL for (int i = 0; i < kX; ++i) x_at[i] =
          offset<kRowsX>(of_x, kSharedX > 1 ? kSharedX * i : column + i / 2 * 8 + i % 2);
    }
    if constexpr (kOfW) {
      w = begin<kRowsW>(of_w);
      TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int h = 0; h < kW; ++h) w_at[s][h] =
          offset<kRowsW>(of_w, row + HEIGHT * s + 8 * h);
    }
  }
  // A panel beyond k has no products, or zeros.
  TW_MEMBER Factors at(i64 panel) const {
    Factors f;
    const u32 p = min2(static_cast<u32>(panel), last);
    TW_UNROLL for (int i = 0; i < kX; ++i) f.x[i] = x[x_at[i] + p];
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int h = 0; h < kW; ++h) f.w[s][h] = w[w_at[s][h] + p];
    return f;
  }

 private:
  template <int shared>
  TW_MEMBER static i64 item(const ScaledRows& m, i64 row) {
    return min2(row, m.count - 1) / shared;
  }
  template <int shared>
  TW_MEMBER static const float* begin(const ScaledRows& m) {
    return static_cast<const float*>(m.scales) + item<shared>(m, m.first) * (m.stride / 128);
  }
  template <int shared>
  TW_MEMBER static u32 offset(const ScaledRows& m, int row) {
    return static_cast<u32>((item<shared>(m, m.first + row) - item<shared>(m, m.first)) * (m.stride / 128));
  }
};

}  // namespace tw::gemm
