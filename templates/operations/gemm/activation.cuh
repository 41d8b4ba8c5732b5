// SPDX-License-Identifier: Apache-2.0
// Activations of the epilogue, for single precision in kernels and double precision in references.
#pragma once
#include "backends/cuda/ptx.cuh"

namespace tw::gemm {

enum class Act { none, relu, gelu, gelu_tanh, silu };  // tilewright::Activation, value for value

TW_DEVICE float exp_of(float v) { return exp_f(v); }
TW_DEVICE float tanh_of(float v) { return tanh_f(v); }
TW_DEVICE float erf_of(float v) { return erf_f(v); }
#if defined(__CUDACC__)
TW_DEVICE double exp_of(double v) { return exp(v); }
TW_DEVICE double tanh_of(double v) { return tanh(v); }
TW_DEVICE double erf_of(double v) { return erf(v); }
#else
TW_DEVICE double exp_of(double v) { return __builtin_exp(v); }
TW_DEVICE double tanh_of(double v) { return __builtin_tanh(v); }
TW_DEVICE double erf_of(double v) { return __builtin_erf(v); }
#endif

// T: float or double. NaN stays NaN.
template <Act act, class T>
TW_DEVICE T activate(T v) {
  constexpr T kOne = 1, kHalf = static_cast<T>(0.5), kSqrtHalf = static_cast<T>(0.70710678118654752440),
              kSqrtTwoOverPi = static_cast<T>(0.79788456080286535588), kCubic = static_cast<T>(0.044715);
  if constexpr (act == Act::relu) return v > 0 || v != v ? v : 0;
  if constexpr (act == Act::gelu) return kHalf * v * (kOne + erf_of(v * kSqrtHalf));
  if constexpr (act == Act::gelu_tanh) return kHalf * v * (kOne + tanh_of(kSqrtTwoOverPi * (v + kCubic * v * v * v)));
  if constexpr (act == Act::silu) return v / (kOne + exp_of(-v));
  return v;
}

}  // namespace tw::gemm
