// SPDX-License-Identifier: Apache-2.0
// From an accumulator to a stored element: y = (act(alpha * sum + bias) + beta * c) / y_scale, and the tensor-wide
// scales; alpha and beta are the problem's times the launch's. Of integers, y = sum + bias, which wraps around.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "operations/gemm/activation.cuh"
#include "operations/gemm/params.cuh"

namespace tw::gemm {

struct NoBias {};
struct NoC {};

// Y: float, f16, bf16, e4m3, e5m2, i8, or i32, which takes sums of integers only. Bias: float, f16, bf16 or NoBias; of
// an i32 Y, i32 or NoBias. C: float, f16, bf16 or NoC.
template <class Y, class Bias, Act act, class C = NoC>
struct Epilogue {
  using Out = Y;
  using Addend = Bias;
  using Residual = C;
  TW_MEMBER static constexpr Act activation() { return act; }
  TW_CONSTANTS(bool, kBias = !same<Bias, NoBias>(), kC = !same<C, NoC>());
  TW_CONSTANTS(bool, kExact = same<Y, i32>());      // integers throughout
  TW_CONSTANTS(bool, kQuantized = sizeof(Y) == 1);  // y has a scale
  static_assert(!kExact || (act == Act::none && !kC && (!kBias || same<Bias, i32>())),
                "sum + bias is all that is exact");
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
  // The same of an element that exists.
  TW_MEMBER static float c_element(const void* c, i64 at) {
    if constexpr (!kC)
      return 0.0f;
    else
      return to_f32(static_cast<const C*>(c)[at]);
  }
  // `scale`: all that sum is to be multiplied with.
  template <class Sum>
  TW_MEMBER static Value finish(const Args& args, const Shape& shape, Sum sum, float scale, Value bias, float c) {
    if constexpr (kExact) {
      static_assert(same<Sum, i32>(), "exact sums");
      return static_cast<i32>(static_cast<u32>(sum) + static_cast<u32>(bias));
    } else {
      float v = activate<act>(static_cast<float>(sum) * scale + bias);
      if constexpr (kC) v += shape.beta * args.beta * c;
      if constexpr (kQuantized) v *= shape.y_factor;
      return v;
    }
  }
  template <class Sum>
  TW_MEMBER static Value apply(const Args& args, const Shape& shape, i64 m, i64 n, Sum sum, float scale) {
    return finish(args, shape, sum, scale, bias_at(args.bias, n), c_at(args, shape, m, n));
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

}  // namespace tw::gemm
