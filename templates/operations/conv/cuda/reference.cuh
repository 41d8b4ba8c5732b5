// SPDX-License-Identifier: Apache-2.0
// Any convolution, by the formats' scalar decoders, summed in double precision: what the tuner holds the others
// against, and the last resort where no other kernel is legal. Taps of zero padding are left out. What is fake
// quantized is so once for each product.
//
// As an oracle it stores, instead of y, two tensors of floats in y's order: values, and the largest absolute errors
// that a correct kernel may make (operations/gemm/error_bound.cuh).
#pragma once
#include "operations/conv/params.cuh"
#include "operations/fp4_fake_quant/fp4_fake.cuh"
#include "operations/gemm/cuda/reference.cuh"

namespace tw::conv {

// Tiled: void, or the element for which w is tiled (operations/gemm/cuda/reference.cuh).
template <class X, class W, class Epi, bool oracle, class Tiled = void>
struct Reference {
  using Product = gemm::Reference<X, W, Epi, oracle, Tiled>;
  TW_CONSTANTS(int, kThreads = 128, kSharedBytes = 0);
  TW_CONSTANTS(int, kPixels = 8, kChannels = kThreads / kPixels);  // of y, of a block
  TW_CONSTANTS(bool, kTiled = !same<Tiled, void>());
  // Formats that are fake quantized.
  using Element = gemm::element_of<X>;
  TW_CONSTANTS(bool, kFloats = same<Element, float>() || same<Element, f16>() || same<Element, bf16>());
  // Single precision goes through TF32, or where accumulation is fast through bfloat16.
  TW_CONSTANTS(bool, kSingle = same<gemm::element_of<X>, float>() && same<gemm::element_of<W>, float>());

  // What it may cost to write w to the workspace as x's elements.
  TW_MEMBER static constexpr double written_rounding() {
    if (kTiled) return 0;
    if constexpr (same<tile_element<X, W>, Element>() && !same<Element, void>())
      if constexpr (has_tile<W, Element>()) return W::template Tile<Element>::rounding();
    return 0;
  }

  // Where an output is, and the sums of its products.
  struct Place {
    i64 image, pixel;
    i32 at[3];
  };
  struct Sums {
    double product = 0, magnitude = 0;
    double rounding = 0;  // of unpacked weights
  };

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 columns = ceil_div64(shape.k, kChannels), pixels = shape.pixels();
    const i64 m = block_x() / columns * kPixels + thread_x() / kChannels;
    const i64 channel = block_x() % columns * kChannels + thread_x() % kChannels;
    if (m >= shape.n * pixels || channel >= shape.k) return;
    Place place{m / pixels, m % pixels, {}};
    i64 rest = place.pixel;
    for (int a = 2; a >= 0; --a) place.at[a] = static_cast<i32>(rest % shape.axes[a].out), rest /= shape.axes[a].out;
    finish(args, shape, place, channel, sums_of(args, shape, place, channel));
  }

 private:
  // x at a tap: of the group's first channel, bytes from one block of channels to the next, and what the pixel's row
  // has of scales. Null: zero padding.
  struct Channels {
    const u8* from;
    i64 step;
    fmt::row_item<X> item;
  };
  TW_MEMBER static Channels channels_at(const Args& args, const Shape& shape, const Place& place, i64 first, i32 t,
                                        i32 r, i32 s) {
    const Axis* axes = shape.axes;
    const i32 z = source_of(axes[0], place.at[0], t), y = source_of(axes[1], place.at[1], r),
              x = source_of(axes[2], place.at[2], s);
    if (z < 0 || y < 0 || x < 0) return {nullptr, 0, {}};
    const Source source = source_at(shape, z, y, x);
    const i64 at = element_at(shape.x_channels_first, place.image, first, shape.c, source.pixel, source.pixels);
    return {static_cast<const u8*>(source.cached ? args.cache : args.x.data) + at / X::kBlock * X::kDataBytes,
            (shape.x_channels_first ? source.pixels : 1) * X::kDataBytes,
            fmt::row_item_at<X>(args.x.scales, at / shape.c)};
  }
  TW_MEMBER static float decoded(const Channels& x, i64 c) {
    const u8* const none = nullptr;
    return X::decode(x.from + c / X::kBlock * x.step, none, x.item, static_cast<int>(c % X::kBlock));
  }

  TW_MEMBER static Sums sums_of(const Args& args, const Shape& shape, const Place& place, i64 channel) {
    const i32 of_group = shape.c / shape.groups;
    const i64 first = channel / (shape.k / shape.groups) * of_group, columns = shape.columns(), taps = shape.taps();
    gemm::WeightRow<W, Tiled, Element> w(args.w, channel, columns);
    const bool narrows = Product::may_narrow() && shape.fast != 0;
    Sums sums;
    const auto add = [&](i64 c, i64 tap, double a) {
      const i64 column = shape.w_channels_first ? c * taps + tap : tap * of_group + c;
      const double weight = w.at(column), product = a * weight;
      sums.product += product, sums.magnitude += gemm::magnitude_of(product);
      if constexpr (oracle && (kTiled || gemm::table_rounding<W, Element>() > 0))
        sums.rounding += gemm::magnitude_of(a) * w.slack(column, weight, narrows);
    };
    if constexpr (kFloats) {
      if (shape.quant_block > 0) {
        for_quantized(args, shape, place, first, add);
        return sums;
      }
    }
    const Axis* axes = shape.axes;
    i64 tap = -1;
    for (i32 t = 0; t < axes[0].kernel; ++t)
      for (i32 r = 0; r < axes[1].kernel; ++r)
        for (i32 s = 0; s < axes[2].kernel; ++s) {
          ++tap;
          const Channels x = channels_at(args, shape, place, first, t, r, s);
          for (i32 c = 0; x.from && c < of_group; ++c) add(c, tap, decoded(x, c));
        }
    return sums;
  }

  // visit(channel of the group, tap, element of x), fake quantized. Blocks run through all columns, channels first, or
  // through the channels of each tap.
  template <class Visit>
  TW_MEMBER static void for_quantized(const Args& args, const Shape& shape, const Place& place, i64 first,
                                      const Visit& visit) {
    const i32 taps = static_cast<i32>(shape.taps()), runs = shape.quant_channels ? taps : 1,
              length = static_cast<i32>(shape.columns()) / runs;
    const i32 rows = shape.axes[1].kernel, columns = shape.axes[2].kernel;
    const Fp4Scales scales(*args.amax);
    for (i32 run = 0; run < runs; ++run)
      for (i32 left = length; left > 0; left -= shape.quant_block) {
        const i32 begin = length - left, end = begin + min2(left, shape.quant_block);
        const auto each = [&](const auto& use) {
          for (i32 i = begin; i < end; ++i) {
            const i32 c = shape.quant_channels ? i : i / taps, tap = shape.quant_channels ? run : i % taps;
            const Channels x =
                channels_at(args, shape, place, first, tap / columns / rows, tap / columns % rows, tap % columns);
            if (x.from) use(c, tap, decoded(x, c));
          }
        };
        float largest = 0.0f;
        each([&](i64, i64, float v) { largest = max_number(largest, abs_f(v)); });
        const float scale = scales.of_block(largest), inverse = div_rn(1.0f, scale);
        each([&](i64 c, i64 tap, float v) { visit(c, tap, to_f32(from_f32<Element>(fp4_fake(v, scale, inverse)))); });
      }
  }

  TW_MEMBER static void finish(const Args& args, const Shape& shape, const Place& place, i64 channel,
                               const Sums& sums) {
    const i64 at = element_at(shape.y_channels_first, place.image, channel, shape.k, place.pixel, shape.pixels());
    double scale = shape.alpha * args.alpha;
    if constexpr (X::kGlobal) scale = shape.global_divides ? scale / *args.x.global : scale * *args.x.global;
    if constexpr (W::kGlobal) scale = shape.global_divides ? scale / *args.w.global : scale * *args.w.global;
    const double linear = sums.product * scale, bias = Epi::bias_at(args.bias, channel);
    double residual = 0;
    if constexpr (Epi::kC)
      residual = static_cast<double>(shape.beta * args.beta) *
                 to_f32(static_cast<const typename Epi::Residual*>(args.residual)[at]);
    double y = gemm::activate<Epi::activation()>(linear + bias) + residual;
    if constexpr (Epi::kQuantized) y *= shape.y_factor;
    const double rounding = sums.rounding + sums.magnitude * (kSingle ? gemm::single_rounding(shape.fast != 0)
                                                              : shape.workspace > 0 ? written_rounding()
                                                                                    : 0);
    float* const values = static_cast<float*>(args.y);
    gemm::store_reference<Epi, oracle>(
        args.y, at, {values, values + shape.n * shape.pixels() * shape.k}, at,
        {gemm::store_error<typename Epi::Out>(), gemm::additions_of(shape.columns()),
         gemm::cut_of(Product::kCuts || (Product::may_narrow() && shape.fast != 0), shape.fast != 0, shape.columns()),
         Epi::kExact, Epi::kQuantized, shape.y_factor},
        {scale, sums.magnitude, rounding, linear, bias, residual, y});
  }
};

}  // namespace tw::conv
