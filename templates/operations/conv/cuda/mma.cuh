// SPDX-License-Identifier: Apache-2.0
// Convolutions as gemms of the matrix units (operations/gemm/cuda/mma/kernel.cuh), whose rows of x are gathered while
// they are copied.
#pragma once
#include "operations/conv/cuda/gather.cuh"
#include "operations/conv/cuda/product.cuh"
#include "operations/gemm/cuda/groups.cuh"
#include "operations/gemm/cuda/mma/kernel.cuh"

namespace tw::conv {

template <class X, class W, class Epi, const gemm::MmaKnobs& knobs, const GatherKnobs& gather>
struct Mma {
  using Product = gemm::Mma<X, W, Epi, knobs, Gathered<gather>>;
  TW_CONSTANTS(int, kThreads = Product::kThreads,
               kSharedBytes = Product::kSharedBytes + gather.table_bytes(knobs.block_m));

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    gemm::Args product = product_args(args, shape.n * shape.pixels());
    gemm::Shape of = product_shape(shape, shape.k, shape.columns());
    i32 first = 0, channels = shape.c;
    u32 block = block_x();
    if constexpr (gather.grouped) {
      const u32 blocks = grid_x() / static_cast<u32>(shape.groups);
      const i64 group = block / blocks;
      block %= blocks;
      of.n = shape.k / shape.groups, channels = shape.c / shape.groups;
      first = static_cast<i32>(group) * channels;
      product.ldy = product.ldc = shape.k;
      const i64 filter = group * of.n, at = filter * (gather.y_channels_first ? shape.pixels() : 1);
      gemm::skip(product.w.data, filter * gemm::data_stride<W>(of.k));
      gemm::skip(product.w.scales, filter * gemm::scale_stride<W>(of.k));
      gemm::skip(product.y, at * static_cast<i64>(sizeof(typename Epi::Out)));
      if constexpr (Epi::kBias) gemm::skip(product.bias, filter * static_cast<i64>(sizeof(typename Epi::Addend)));
      if constexpr (Epi::kC) gemm::skip(product.c, at * static_cast<i64>(sizeof(typename Epi::Residual)));
    }
    Product::run(
        product, of,
        {args, shape, first, channels, block, reinterpret_cast<i32*>(dynamic_shared() + Product::kSharedBytes)});
  }
};

}  // namespace tw::conv
