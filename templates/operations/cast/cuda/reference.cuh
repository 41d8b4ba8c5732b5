// SPDX-License-Identifier: Apache-2.0
// Any pair of formats by their scalar codecs, one thread per block, or per row where a row has a scale. Slow and plain:
// what the other kernels must equal bit for bit.
#pragma once
#include "backends/cuda/runs.cuh"
#include "operations/cast/params.cuh"
#include "operations/cast/stochastic.cuh"

namespace tw::cast {

template <class X, class Y, bool stochastic = false>
struct Reference {
  TW_CONSTANTS(int, kThreads = 128, kSharedBytes = 0);
  TW_CONSTANTS(int, kUnit = max2(X::kBlock, Y::kBlock));  // elements that belong together; blocks are powers of two
  TW_CONSTANTS(int, kTile = kThreads * kUnit);

  TW_MEMBER static float element(const Args& args, const Shape& shape, i64 at, const fmt::row_item<X>& context) {
    const i64 block = at / X::kBlock;
    i64 item = block;  // of scales
    if constexpr (X::kScaleRows > 1)
      item = at / shape.cols / X::kScaleRows * (shape.cols / X::kBlock) + at % shape.cols / X::kBlock;
    return X::decode(static_cast<const u8*>(args.x.data) + block * X::kDataBytes,
                     static_cast<const u8*>(args.x.scales) + item * X::kScaleBytes, context,
                     static_cast<int>(at % X::kBlock));
  }
  TW_MEMBER static void encode(const Args& args, const float* v, i64 at, const fmt::row_item<Y>& context, i32 encoder) {
    const i64 block = at / Y::kBlock;
    u8* const data = static_cast<u8*>(args.y.data) + block * Y::kDataBytes;
    u8* const scales = static_cast<u8*>(args.y.scales) + block * Y::kScaleBytes;
    Y::encode(v, data, scales, context, encoder);
    if constexpr (stochastic)
      for (int i = 0; i < Y::kBlock; ++i) {
        u32 random[4];
        random_words(random, (at + i) / 4, args.seed);
        fmt::round_stochastically<Y>(data, scales, context, i, v[i], random[(at + i) % 4], encoder);
      }
  }
  // Elements at .. at + kUnit of one row.
  TW_MEMBER static void unit(const Args& args, const Shape& shape, i64 at, const fmt::row_item<X>& x_context,
                             const fmt::row_item<Y>& y_context) {
    float v[kUnit];
    for (int i = 0; i < kUnit; ++i) v[i] = element(args, shape, at + i, x_context);
    for (int i = 0; i < kUnit; i += Y::kBlock) encode(args, v + i, at + i, y_context, shape.encoder);
  }
  TW_MEMBER static fmt::row_item<X> x_context(const Args& args, i64 row) {
    if constexpr (X::kRowScale)
      return fmt::row_item_at<X>(args.x.scales, row);
    else
      return tensor_scale<X>(args.x.global);
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 thread = static_cast<i64>(block_x()) * kThreads + thread_x();
    if constexpr (Y::kRowScale) {
      if (thread >= args.rows) return;
      const i64 first = thread * shape.cols;
      const fmt::row_item<X> context = x_context(args, thread);
      fmt::Extent<Y> extent;
      for (i64 c = 0; c < shape.cols; ++c) extent.add(element(args, shape, first + c, context));
      fmt::row_item<Y> item = extent.item();
      for (i64 c = 0; c < shape.cols; c += kUnit) unit(args, shape, first + c, context, item);
      if constexpr (!same<fmt::row_item<Y>, float>())
        for (i64 b = first / Y::kBlock; b < (first + shape.cols) / Y::kBlock; ++b)
          fmt::add_codes(item, static_cast<const u8*>(args.y.data)[b]);
      static_cast<fmt::row_item<Y>*>(args.y.scales)[thread] = item;
    } else {
      const i64 at = thread * kUnit;
      if (at >= args.rows * shape.cols) return;
      const i64 row = X::kRowScale ? at / shape.cols : 0;
      unit(args, shape, at, x_context(args, row), tensor_scale<Y>(args.y.global));
    }
  }
};

}  // namespace tw::cast
