// SPDX-License-Identifier: Apache-2.0
// From an accumulator to a stored element: y = act(alpha * sum + bias), and the tensor-wide scales.
#pragma once
#include "core/ptx.cuh"
#include "gemm/params.cuh"

namespace tw::gemm {

enum class Act { none, relu, gelu, gelu_tanh, silu };  // tilewright::Activation, value for value

template <Act act> TW_DEVICE float activate(float v) {
  if constexpr (act == Act::relu) return v > 0.0f || is_nan(v) ? v : 0.0f;
  if constexpr (act == Act::gelu) return 0.5f * v * (1.0f + erf_f(v * 0.70710678118654752f));
  if constexpr (act == Act::gelu_tanh)
    return 0.5f * v * (1.0f + tanh_f(0.79788456080286536f * (v + 0.044715f * v * v * v)));
  if constexpr (act == Act::silu) return v / (1.0f + exp_f(-v));
  return v;
}

struct NoBias {};

// Y, Bias: float, f16, bf16 (Bias also NoBias).
template <class Y, class Bias, Act act> struct Epilogue {
  using Out = Y;
  static constexpr Act kAct = act;
  static constexpr bool kBias = !same<Bias, NoBias>;

  TW_MEMBER static float bias_at(const void* bias, i64 n) {
    if constexpr (kBias) return to_f32(static_cast<const Bias*>(bias)[n]);
    else return 0.0f;
  }
  TW_MEMBER static float finish(float sum, float scale, float bias) { return activate<act>(sum * scale + bias); }
  TW_MEMBER static float apply(float sum, float scale, const void* bias, i64 n) { return finish(sum, scale, bias_at(bias, n)); }
  TW_MEMBER static void store(void* y, i64 at, float v) { static_cast<Y*>(y)[at] = from_f32<Y>(v); }
  // Two neighbours, `at` even and y aligned to both.
  TW_MEMBER static void store_pair(void* y, i64 at, float lo, float hi) {
    if constexpr (sizeof(Y) == 4) *reinterpret_cast<u32x2*>(static_cast<Y*>(y) + at) = {bits_as<u32>(lo), bits_as<u32>(hi)};
    else *reinterpret_cast<u32*>(static_cast<Y*>(y) + at) = pack2<Y>(lo, hi);
  }
};

// alpha and the tensor-wide scales of both operands in one factor.
template <class X, class W> TW_DEVICE float tensor_scale(const Args& args, const Shape& shape) {
  float s = shape.alpha;
  if constexpr (X::kGlobal) s = shape.global_divides ? s / *args.x.global : s * *args.x.global;
  if constexpr (W::kGlobal) s = shape.global_divides ? s / *args.w.global : s * *args.w.global;
  return s;
}

// What the multipliers take: signed bytes for coded operands, else the elements themselves.
template <class X, bool codes> struct OperandOf { using type = typename X::Element; };
template <class X> struct OperandOf<X, true> { using type = i8; };

// Bytes from one row of a format's stream to the next; of scales that scale_rows rows share, to the next rows' that do.
template <class F> TW_DEVICE i64 data_stride(i64 cols) { return cols / F::kBlock * F::kDataBytes; }
template <class F> TW_DEVICE i64 scale_stride(i64 cols) { return F::kRowScale ? 4 : cols / F::kBlock * F::kScaleBytes; }

}  // namespace tw::gemm
