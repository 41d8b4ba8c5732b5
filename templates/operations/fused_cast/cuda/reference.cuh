// SPDX-License-Identifier: Apache-2.0
// One thread for each row, in double precision, and by the formats' scalar codecs. Slow and plain; any pair of formats.
#pragma once
#include "backends/cuda/runs.cuh"
#include "formats/shared/format.cuh"
#include "operations/fused_cast/cuda/plan.cuh"
#include "operations/fused_cast/params.cuh"

namespace tw::fused_cast {

template <class X, class Y, class Bias, class Weight, const Knobs& knobs>
struct Reference {
  using T = typename X::Element;
  TW_CONSTANTS(int, kThreads = 128, kSharedBytes = 0);

  template <class F>
  TW_MEMBER static float element(const void* from, i64 at) {
    if constexpr (same<F, void>())
      return 0.0f;
    else
      return to_f32(static_cast<const typename F::Element*>(from)[at]);
  }
  // What is normalized, in a row's first pass and in later ones.
  template <bool again>
  TW_MEMBER static double begin(const Args& args, const Shape& shape, i64 row, i64 c) {
    const i64 at = row * shape.cols + c;
    if constexpr (knobs.gated) {
      const i64 gate = 2 * row * shape.cols + c;
      return gemm::activate<knobs.act>(static_cast<double>(element<X>(args.x, gate))) *
             element<X>(args.x, gate + shape.cols);
    } else if constexpr (knobs.residual) {
      T* const out = static_cast<T*>(args.residual_out) + at;
      if constexpr (!again) {
        float h = element<X>(args.x, at);
        if constexpr (!same<Bias, void>()) h = add_rn(h, element<Bias>(args.bias, c));
        *out = from_f32<T>(add_rn(h, element<X>(args.residual, at)));
      }
      return to_f32(*out);
    } else {
      return static_cast<double>(element<X>(args.x, at)) + element<Bias>(args.bias, c);
    }
  }
  TW_MEMBER static float value(const Args& args, const Shape& shape, i64 row, i64 c, double inverse_rms) {
    double h = begin<true>(args, shape, row, c);
    if constexpr (knobs.norm) {
      h *= inverse_rms;
      if constexpr (!same<Weight, void>()) h *= element<Weight>(args.weight, c);
    }
    if constexpr (!knobs.gated) h = gemm::activate<knobs.act>(h);
    return static_cast<float>(h);
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 row = static_cast<i64>(block_x()) * kThreads + thread_x(), cols = shape.cols;
    if (row >= args.rows) return;
    double inverse_rms = 1;
    if constexpr (knobs.norm || knobs.residual) {
      double sum = 0;
      for (i64 c = 0; c < cols; ++c) {
        const double h = begin<false>(args, shape, row, c);
        sum += h * h;
      }
      inverse_rms = 1 / square_root(sum / static_cast<double>(cols) + shape.eps);
    }
    fmt::row_item<Y> context{};
    if constexpr (Y::kRowScale) {
      fmt::Extent<Y> extent;
      for (i64 c = 0; c < cols; ++c) extent.add(value(args, shape, row, c, inverse_rms));
      context = extent.item();
    } else {
      context = cast::tensor_scale<Y>(args.y.global);
    }
    for (i64 c = 0; c < cols; c += Y::kBlock) {
      float v[Y::kBlock];
      for (int i = 0; i < Y::kBlock; ++i) v[i] = value(args, shape, row, c + i, inverse_rms);
      const i64 block = (row * cols + c) / Y::kBlock;
      u8* const data = static_cast<u8*>(args.y.data) + block * Y::kDataBytes;
      Y::encode(v, data, static_cast<u8*>(args.y.scales) + block * Y::kScaleBytes, context, shape.encoder);
      if constexpr (fmt::has_zero_point<Y>()) context.sum += static_cast<i8>(*data);
    }
    if constexpr (Y::kRowScale) static_cast<fmt::row_item<Y>*>(args.y.scales)[row] = context;
  }

 private:
  TW_MEMBER static double square_root(double v) {
#if defined(__CUDACC__)
    return sqrt(v);
#else
    return __builtin_sqrt(v);
#endif
  }
};

}  // namespace tw::fused_cast
