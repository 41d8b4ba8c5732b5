// SPDX-License-Identifier: Apache-2.0
// From an accumulator to a stored element: y = (act(alpha * sum + bias) + beta * c) / y_scale, and the tensor-wide
// scales. Of integers, y = sum + bias, which wraps around.
#pragma once
#include "core/format.cuh"
#include "core/ptx.cuh"
#include "gemm/params.cuh"

namespace tw::gemm {

enum class Act { none, relu, gelu, gelu_tanh, silu };  // tilewright::Activation, value for value

template <Act act>
TW_DEVICE float activate(float v) {
  if constexpr (act == Act::relu) return v > 0.0f || is_nan(v) ? v : 0.0f;
  if constexpr (act == Act::gelu) return 0.5f * v * (1.0f + erf_f(v * 0.70710678118654752f));
  if constexpr (act == Act::gelu_tanh)
    return 0.5f * v * (1.0f + tanh_f(0.79788456080286536f * (v + 0.044715f * v * v * v)));
  if constexpr (act == Act::silu) return v / (1.0f + exp_f(-v));
  return v;
}

struct NoBias {};
struct NoC {};

// Y: float, f16, bf16, e4m3, e5m2, i8, or i32, which takes sums of integers only. Bias: float, f16, bf16 or NoBias; of
// an i32 Y, i32 or NoBias. C: float, f16, bf16 or NoC.
template <class Y, class Bias, Act act, class C = NoC>
struct Epilogue {
  using Out = Y;
  using Residual = C;
  static constexpr Act kAct = act;
  static constexpr bool kBias = !same<Bias, NoBias>, kC = !same<C, NoC>;
  static constexpr bool kExact = same<Y, i32>;        // integers throughout
  static constexpr bool kQuantized = sizeof(Y) == 1;  // y has a scale
  static_assert(!kExact || (act == Act::none && !kC && (!kBias || same<Bias, i32>)), "sum + bias is all that is exact");
  using Value = select<kExact, i32, float>;

  TW_MEMBER static Value bias_at(const void* bias, i64 n) {
    if constexpr (!kBias)
      return 0;
    else if constexpr (kExact)
      return static_cast<const Bias*>(bias)[n];
    else
      return to_f32(static_cast<const Bias*>(bias)[n]);
  }
  // c may be y: an element is read once, before it is stored.
  // The element of row m and column n, which may lie beyond the matrix.
  TW_MEMBER static float c_at(const Args& args, const Shape& shape, i64 m, i64 n) {
    if constexpr (!kC)
      return 0.0f;
    else
      return m >= args.m || n >= shape.n
                 ? 0.0f
                 : to_f32(static_cast<const C*>(args.c)[m * (args.ldc ? args.ldc : shape.n) + n]);
  }
  // `scale`: all that sum is to be multiplied with.
  template <class Sum>
  TW_MEMBER static Value finish(const Shape& shape, Sum sum, float scale, Value bias, float c) {
    if constexpr (kExact) {
      static_assert(same<Sum, i32>, "exact sums");
      return static_cast<i32>(static_cast<u32>(sum) + static_cast<u32>(bias));
    } else {
      float v = activate<act>(static_cast<float>(sum) * scale + bias);
      if constexpr (kC) v += shape.beta * c;
      if constexpr (kQuantized) v *= shape.y_factor;
      return v;
    }
  }
  template <class Sum>
  TW_MEMBER static Value apply(const Args& args, const Shape& shape, i64 m, i64 n, Sum sum, float scale) {
    return finish(shape, sum, scale, bias_at(args.bias, n), c_at(args, shape, m, n));
  }
  TW_MEMBER static void store(void* y, i64 at, Value v) {
    if constexpr (kExact)
      static_cast<Y*>(y)[at] = v;
    else
      static_cast<Y*>(y)[at] = from_f32<Y>(v);
  }
  // Two neighbours, `at` even and y aligned to both.
  TW_MEMBER static void store_pair(void* y, i64 at, Value lo, Value hi) {
    if constexpr (sizeof(Y) == 4)
      *reinterpret_cast<u32x2*>(static_cast<Y*>(y) + at) = {bits_as<u32>(lo), bits_as<u32>(hi)};
    else if constexpr (sizeof(Y) == 2)
      *reinterpret_cast<u32*>(static_cast<Y*>(y) + at) = pack2<Y>(lo, hi);
    else
      *reinterpret_cast<u16*>(static_cast<Y*>(y) + at) = static_cast<u16>(pack2<Y>(lo, hi));
  }
};

// The type of a format's elements where each is stored by itself, else void.
template <class F, class = void>
struct ElementOf {
  using type = void;
};
template <class F>
struct ElementOf<F, void_of<typename F::Element>> {
  using type = typename F::Element;
};
template <class F>
using element_of = typename ElementOf<F>::type;

// alpha and the tensor-wide scales of both operands in one factor.
template <class X, class W>
TW_DEVICE float tensor_scale(const Args& args, const Shape& shape) {
  float s = shape.alpha;
  if constexpr (X::kGlobal) s = shape.global_divides ? s / *args.x.global : s * *args.x.global;
  if constexpr (W::kGlobal) s = shape.global_divides ? s / *args.w.global : s * *args.w.global;
  return s;
}

// What the epilogue needs of a row of x and of one of w, whose sum counts what zero points of x take off: sum - k zero.
template <class X>
TW_DEVICE fmt::row_item<X> x_item(const Args& args, i64 m) {
  return fmt::row_item_at<X>(args.x.scales, m);
}
template <class W>
TW_DEVICE fmt::row_item<W> w_item(const Args& args, i64 n, i64 k) {
  fmt::row_item<W> item = fmt::row_item_at<W>(args.w.scales, n);
  if constexpr (fmt::has_zero_point<W>) item.sum -= static_cast<i32>(k) * item.zero;
  return item;
}
// Sums of codes to sums of what they stand for. What is between may wrap around.
template <class Sum>
TW_DEVICE Sum centred(Sum sum, float, float) {
  return sum;
}
TW_DEVICE i32 centred(i32 sum, const fmt::ZeroPointItem& x, const fmt::ZeroPointItem& w) {
  const u32 taken =
      static_cast<u32>(x.zero) * static_cast<u32>(w.sum) + static_cast<u32>(w.zero) * static_cast<u32>(x.sum);
  return static_cast<i32>(static_cast<u32>(sum) - taken);
}

// What the multipliers take: signed bytes for coded operands, else the elements themselves.
template <class X, bool codes>
struct OperandOf {
  using type = typename X::Element;
};
template <class X>
struct OperandOf<X, true> {
  using type = i8;
};

// Bytes from one row of a format's stream to the next; of scales that scale_rows rows share, to the next rows' that do.
// (Rows whose elements are whole bytes need not be whole blocks apart: floats that the kernel quantizes.)
template <class F>
TW_DEVICE i64 data_stride(i64 cols) {
  if constexpr (F::kDataBytes % F::kBlock == 0)
    return cols * (F::kDataBytes / F::kBlock);
  else
    return cols / F::kBlock * F::kDataBytes;
}
template <class F>
TW_DEVICE i64 scale_stride(i64 cols) {
  return F::kRowScale ? fmt::row_bytes<F> : cols / F::kBlock * F::kScaleBytes;
}

}  // namespace tw::gemm
