// SPDX-License-Identifier: Apache-2.0
// What the epilogue needs beside the sums: scales and zero points of w's rows and of x's tokens, and the bias.
// T: WgmmaTraits, or the same names of wgmma_codes.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/quantized.cuh"
#include "operations/gemm/cuda/wgmma/plan.cuh"

namespace tw::gemm {

template <class T>
struct TileItems {
  using X = typename T::X;
  using W = typename T::W;
  using Epi = typename T::Epi;
  TW_CONSTANTS(int, kColumns = T::kColumns, kStrips = T::kStrips, kWarpgroupsN = T::kWarpgroupsN);
  // What products lack.
  TW_MEMBER static constexpr float factor() { return T::Weights::factor() * fmt::StepOf<X>::step(); }

  struct RowItems {
    fmt::row_item<W> w[kStrips][2];  // items of this thread's rows of w, times the tensor's scale
    typename Epi::Value bias[kStrips][2];
  };
  TW_MEMBER static RowItems row_items(const Args& args, const Shape& shape, i64 n0, int thread) {
    RowItems s;
    const float tensor = tensor_scale<X, W>(args, shape) * factor();
    TW_UNROLL for (int strip = 0; strip < kStrips; ++strip) TW_UNROLL for (int h = 0; h < 2; ++h) {
      const i64 n = min2(n0 + row_of(thread, strip, h), shape.n - 1);
      s.w[strip][h] = fmt::scaled_by(tensor, w_item<W>(args, n, shape.k));
      s.bias[strip][h] = Epi::bias_at(args.bias, n);
    }
    return s;
  }
  // What x has for a token: a scale, and maybe a zero point; zeros beyond the matrix.
  using Column = fmt::row_item<X>;
  TW_MEMBER static Column column_item(const Args& args, i64 m) { return m < args.m ? x_item<X>(args, m) : Column{}; }
  TW_MEMBER static Column column_of(const Column* shared, int token) {
    if constexpr (X::kRowScale)
      return shared[token];
    else
      return 1.0f;
  }
  // The items of the tile's tokens. A warpgroup loads them into registers ahead of the products and copies them to its
  // part of shared memory afterwards.
  struct ColumnItems {
    TW_CONSTANTS(int, kOwn = X::kRowScale && sizeof(Column) == 4 && !T::kPromotes ? ceil_div(kColumns, 128) : 0);
    Column own[max2(1, kOwn)];
    TW_MEMBER ColumnItems(const Args& args, i64 m0, int thread) {
      TW_UNROLL for (int i = 0; i < kOwn; ++i) own[i] = column_item(args, m0 + i * 128 + thread % 128);
    }
    TW_MEMBER void share(const Args& args, i64 m0, Column* to, int thread) const {
      if constexpr (X::kRowScale) {
        const u32 barrier = 1 + static_cast<u32>(thread / 128);
        sync_named(barrier, 128);  // all have read the previous tile's
        if constexpr (kOwn == 0) {
          for (int i = thread % 128; i < kColumns; i += 128)
            to[i] = column_item(args, m0 + i);  // promotion leaves no registers to load them ahead
        } else {
          TW_UNROLL for (int i = 0; i < kOwn; ++i) if (i * 128 + thread % 128 < kColumns) to[i * 128 + thread % 128] =
              own[i];
        }
        sync_named(barrier, 128);
      }
    }
  };
  // The row of w within the tile that a thread's accumulators of row half h belong to.
  TW_MEMBER static int row_of(int thread, int strip, int h) {
    return (thread / 128 % kWarpgroupsN * kStrips + strip) * kStripRows + thread % 128 / 32 * 16 + thread % 32 / 4 +
           8 * h;
  }
};

}  // namespace tw::gemm
