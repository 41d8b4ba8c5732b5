// SPDX-License-Identifier: Apache-2.0
// Any pair of formats, by their scalar decoders, summed in double precision. Slow and plain: what the tuner holds the
// others against, and the last resort where no other kernel is legal.
//
// As an oracle it stores, instead of y, two dense float matrices [m, n]: the value, and the largest absolute error a
// correct kernel may make there,
//   b = 1.2 |scale| (k / 4 + 64) 2^-24 sum |x w| + 2^-20 (|v| + |sum * scale| + |bias| + |beta c|)
//   bound = b + u (|y| + b) + tiny,
// the first term for fp32 accumulation in any order (k / 4 sequential additions at most; operands are exact in every
// kernel), 1.2 for the steepest slope of the activations, the second for alpha, bias, the activation and c in fp32, and
// u = 2^-24, 2^-11, 2^-8, 2^-4, 2^-3 for an f32, f16, bf16, e4m3, e5m2 output, with tiny = its smallest subnormal; for
// int8 u = 0 and tiny = 1/2. Where y has a scale, b is divided by it, with 2^-20 |y| for doing so, and the value is
// clamped to what y holds: clamping moves no two values apart. int32 is exact: the bound is less than 1, and 2^-24 |y|
// for the value as a float. Weights in tiles may be rounded when they are unpacked (kRounding of core/tiles.cuh), which
// adds 1.2 |scale| kRounding sum |x| p; p is |w|, and where w is code * step + w0 (Tile::kOffset) and either part may
// be rounded, |w| + 2 |w0| >= |code * step| + |w0|. FP8 products are added by Hopper's matrix units with some 14 bits
// kept of each sum (DeepSeek-V3 technical report, section 3.5.2), cut off and not rounded: 1.2 |scale| s 2^-10 sum |x
// w| more (5.97e-4 a sum was seen on an H200, k = 2176, all products of one sign), s the sums of 32 products one after
// another: 4, or k / 32 for accum=fast. The same is allowed to units that scale blocks (sm_120a), s being 4 sums of 32
// or 64 products; it has not been measured there.
#pragma once
#include "core/format.cuh"
#include "core/quantized.cuh"
#include "core/tiles.cuh"
#include "gemm/epilogue.cuh"

namespace tw::gemm {

#if defined(__CUDACC__)
TW_DEVICE double exp_d(double v) { return exp(v); }
TW_DEVICE double tanh_d(double v) { return tanh(v); }
TW_DEVICE double erf_d(double v) { return erf(v); }
#else
TW_DEVICE double exp_d(double v) { return __builtin_exp(v); }
TW_DEVICE double tanh_d(double v) { return __builtin_tanh(v); }
TW_DEVICE double erf_d(double v) { return __builtin_erf(v); }
#endif

template <Act act>
TW_DEVICE double activate_exactly(double v) {
  if constexpr (act == Act::relu) return v > 0.0 || v != v ? v : 0.0;
  if constexpr (act == Act::gelu) return 0.5 * v * (1.0 + erf_d(v * 0.70710678118654752440));
  if constexpr (act == Act::gelu_tanh)
    return 0.5 * v * (1.0 + tanh_d(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
  if constexpr (act == Act::silu) return v / (1.0 + exp_d(-v));
  return v;
}

// One row of a matrix, element by element.
template <class F>
struct Row {
  const u8* data;
  const u8* scales;
  fmt::row_item<F> context;
  TW_MEMBER Row(const Operand& m, i64 row, i64 stride_elements) {
    data = static_cast<const u8*>(m.data) + row * data_stride<F>(stride_elements);
    scales = F::kScaleBytes
                 ? static_cast<const u8*>(m.scales) + row / fmt::scale_rows<F> * scale_stride<F>(stride_elements)
                 : nullptr;
    context = fmt::row_item_at<F>(m.scales, row);
  }
  TW_MEMBER float at(i64 k) const {
    const i64 b = k / F::kBlock;
    return F::decode(data + b * F::kDataBytes, F::kScaleBytes ? scales + b * F::kScaleBytes : nullptr, context,
                     static_cast<int>(k % F::kBlock));
  }
};

// The same from tiles: consecutive elements cost one rebuilt stretch. Without codes: what codes of 0 stand for.
template <class F, class Element, bool codes = true>
struct TiledRow {
  using Unit = TiledUnit<F, Element>;
  const Operand& tiles;
  i64 row, k, held = -1;
  fmt::row_item<F> context;
  Unit unit;
  TW_MEMBER TiledRow(const Operand& m, i64 at_row, i64 columns) : tiles(m), row(at_row), k(columns) {
    context = fmt::row_item_at<F>(m.scales, row);
  }
  TW_MEMBER float at(i64 at_k) {
    if (at_k / Unit::kColumns != held)
      held = at_k / Unit::kColumns, unit.template read<codes>(tiles.data, tiles.scales, k, row, held);
    const int i = static_cast<int>(at_k % Unit::kColumns), b = i / F::kBlock;
    return F::decode(unit.data + b * F::kDataBytes, F::kScaleBytes ? unit.scales + b * F::kScaleBytes : nullptr,
                     context, i % F::kBlock);
  }
};
// How a row of w is read and how far from it a correct kernel's may be, given with each element. `Tiled`: void, or the
// Element for which w is tiled.
template <class W, class Tiled>
struct WeightRow {
  using Tile = typename W::template Tile<Tiled>;
  static constexpr double kRounding = Tile::kRounding;
  TiledRow<W, Tiled> row;
  TiledRow<W, Tiled, false> base;
  TW_MEMBER WeightRow(const Operand& w, i64 n, i64 k) : row(w, n, k), base(w, n, k) {}
  TW_MEMBER double at(i64 k) { return row.at(k); }
  TW_MEMBER double slack(i64 k, double value) {
    const double v = value < 0 ? -value : value, b = Tile::kOffset ? base.at(k) : 0.0f;
    return kRounding * (v + 2 * (b < 0 ? -b : b));
  }
};
template <class W>
struct WeightRow<W, void> {
  static constexpr double kRounding = 0;
  Row<W> row;
  TW_MEMBER WeightRow(const Operand& w, i64 n, i64 k) : row(w, n, k) {}
  TW_MEMBER double at(i64 k) const { return row.at(k); }
  TW_MEMBER double slack(i64, double) const { return 0; }
};

// What rounding to Y costs; and where it saturates, which only one-byte types do.
struct Rounding {
  double relative, absolute, least = 0, most = 0;
};
template <class Y>
TW_FN constexpr Rounding rounding_of() {
  return same<Y, float>  ? Rounding{5.97e-8, 1.5e-45}
         : same<Y, f16>  ? Rounding{4.89e-4, 6e-8}
         : same<Y, bf16> ? Rounding{3.91e-3, 1e-40}
         : same<Y, e4m3> ? Rounding{0.0626, 0.00196, -448, 448}
         : same<Y, e5m2> ? Rounding{0.1251, 1.53e-5, -57344, 57344}
         : same<Y, i8>   ? Rounding{0, 0.5001, -128, 127}
                         : Rounding{5.97e-8, 0.25};
}
TW_FN constexpr double magnitude_of(double v) { return v < 0 ? -v : v; }

template <class X, class W, class Epi, bool oracle, class Tiled = void>
struct Reference {
  static constexpr int kThreads = 128, kSharedBytes = 0;
  static constexpr int kRows = 4;  // of x per thread: a weight is decoded once for four of them

  TW_MEMBER static void finish(const Args& args, const Shape& shape, i64 m, i64 n, double sum, double magnitude,
                               double rounded) {
    using Y = typename Epi::Out;
    const double scale = tensor_scale<X, W>(args, shape);
    const double bias = Epi::bias_at(args.bias, n);
    const double value = sum * scale + bias;
    double y = activate_exactly<Epi::kAct>(value), added = 0;
    if constexpr (Epi::kC) added = static_cast<double>(shape.beta) * Epi::c_at(args, shape, m, n);
    y += added;
    if constexpr (Epi::kQuantized) y *= shape.y_factor;
    if constexpr (Epi::kExact) y = Epi::finish(shape, static_cast<i32>(sum), 1.0f, Epi::bias_at(args.bias, n), 0.0f);
    if constexpr (!oracle) {
      Epi::store(args.y, m * (args.ldy ? args.ldy : shape.n) + n, static_cast<typename Epi::Value>(y));
    } else {
      constexpr Rounding kY = rounding_of<Y>();
      const double additions = static_cast<double>(shape.k) / 4 + 64;
      const double linear = sum * scale;
      using A = element_of<X>;
      constexpr bool kFp8 =
          is_fp8_type<A> && (is_fp8_type<element_of<W>> || same<Tiled, A> || (W::kCodes && W::kBits <= 4));
      constexpr bool kScaled = fmt::scaled_mma<X> != ScaledMma::none && fmt::scaled_mma<X> == fmt::scaled_mma<W>;
      const double fp8 = !kFp8 && !kScaled ? 0 : 9.765625e-4 * (shape.fast ? static_cast<double>(shape.k) / 32 : 4.0);
      double before = 1.2 * magnitude_of(scale) * (magnitude * (additions * 5.97e-8 + fp8) + rounded) +
                      9.6e-7 * (magnitude_of(value) + magnitude_of(linear) + magnitude_of(bias) + magnitude_of(added));
      if constexpr (Epi::kExact) before = 0;
      if constexpr (Epi::kQuantized) {
        before = before * magnitude_of(shape.y_factor) + 9.6e-7 * magnitude_of(y);
        if (same<Y, i8> && y != y) y = before = 0;  // what a NaN is stored as
        y = y > kY.most ? kY.most : y < kY.least ? kY.least : y;
      }
      const double bound = before + kY.relative * (magnitude_of(y) + before) + kY.absolute;
      float* out = static_cast<float*>(args.y);
      out[m * shape.n + n] = static_cast<float>(y);
      out[(args.m + m) * shape.n + n] = static_cast<float>(bound);
    }
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 n = static_cast<i64>(block_x()) * kThreads + thread_x();
    const i64 m0 = static_cast<i64>(block_y()) * kRows;
    if (n >= shape.n) return;
    const i64 ldx = args.ldx ? args.ldx : shape.k;
    using Weight = WeightRow<W, Tiled>;
    Weight w(args.w, n, shape.k);
    const i64 last = args.m - 1;
    const Row<X> x[kRows] = {Row<X>(args.x, m0, ldx), Row<X>(args.x, min2(m0 + 1, last), ldx),
                             Row<X>(args.x, min2(m0 + 2, last), ldx), Row<X>(args.x, min2(m0 + 3, last), ldx)};
    double sum[kRows] = {}, magnitude[kRows] = {}, rounded[kRows] = {};
    for (i64 k = 0; k < shape.k; ++k) {
      const double b = w.at(k);
      double slack = 0;
      if constexpr (oracle && Weight::kRounding > 0) slack = w.slack(k, b);
      TW_UNROLL for (int i = 0; i < kRows; ++i) {
        const double a = x[i].at(k), product = a * b;
        sum[i] += product;
        if constexpr (oracle) magnitude[i] += product < 0 ? -product : product;
        if constexpr (oracle && Weight::kRounding > 0) rounded[i] += (a < 0 ? -a : a) * slack;
      }
    }
    TW_UNROLL for (int i = 0; i < kRows; ++i) if (m0 + i < args.m)
        finish(args, shape, m0 + i, n, sum[i], magnitude[i], rounded[i]);
  }
};

}  // namespace tw::gemm
