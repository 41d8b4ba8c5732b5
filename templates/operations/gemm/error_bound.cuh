// SPDX-License-Identifier: Apache-2.0
// The largest absolute error that a correct kernel may make in one element of y: what the oracle stores beside each
// value, and what every other check of a gemm holds results to. docs/reference/numerics.md says where the terms come
// from.
//
//   b = 1.2 |scale| ((k / 4 + 64) 2^-24 + cut) magnitude + 1.2 |scale| rounding
//       + 2^-20 (|linear + bias| + |linear| + |bias| + |residual|)
//   b = b |y_factor| + 2^-20 |y|, where y has a scale; b = 0, where y is exact (int32) or a term is infinite
//   bound = b + u (|y| + b) + tiny
//
// 1.2 is the steepest slope of an activation. k / 4 + 64 bounds the single-precision additions that follow each other
// in any kernel; 2^-20 is for alpha, bias, activation and residual in single precision; u and tiny are what storing y
// costs. FP8 products are added by matrix units that keep some 14 bits of a sum and cut off the rest (DeepSeek-V3
// technical report, section 3.5.2): cut = s 2^-10, where s sums of 32 products follow each other (5.97e-4 for one was
// seen on an H200, k = 2176, all products of one sign). s is 4, or k / 32 with accum=fast. The same is allowed to units
// that scale blocks (sm_120a), whose s is 4 sums of 32 or 64 products; it has not been measured there.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gemm {

TW_FN constexpr double magnitude_of(double v) { return v < 0 ? -v : v; }

// What storing y costs, relative to it and absolutely, and where it saturates, which only one-byte types do.
struct StoreError {
  double relative, absolute, least = 0, most = 0;
};
template <class Y>
TW_FN constexpr StoreError store_error() {
  return same<Y, float>()  ? StoreError{5.97e-8, 1.5e-45}
         : same<Y, f16>()  ? StoreError{4.89e-4, 6e-8}
         : same<Y, bf16>() ? StoreError{3.91e-3, 1e-40}
         : same<Y, e4m3>() ? StoreError{0.0626, 0.00196, -448, 448}
         : same<Y, e5m2>() ? StoreError{0.1251, 1.53e-5, -57344, 57344}
         : same<Y, i8>()   ? StoreError{0, 0.5001, -128, 127}
                           : StoreError{5.97e-8, 0.25};  // int32, exact: for the value as a float
}
// y as it is stored; clamping moves no two values apart, so the bound holds for clamped values as it is.
TW_FN constexpr double saturated(const StoreError& store, double y) {
  return store.most == store.least ? y : y > store.most ? store.most : y < store.least ? store.least : y;
}

// What the bound depends on besides one element's sums: the same for a whole problem.
struct ErrorRules {
  StoreError store;
  double additions;  // in sequence: k / 4 + 64
  double cut;        // of the sum's magnitude, by matrix units; 0: they round as single precision does
  bool exact;        // y is int32
  bool scaled;       // y has a scale
  double y_factor;   // its reciprocal
};
// Relative to |x w|, what matrix units lose of single-precision operands: read as TF32 they lack what is behind ten
// bits of the mantissa, as bfloat16 they are rounded to seven.
TW_FN constexpr double single_rounding(bool bfloat) { return bfloat ? 7.8279e-3 : 1.9551e-3; }
// `cuts`: FP8 products, or blocks that the matrix units scale.
TW_FN constexpr double additions_of(i64 k) { return static_cast<double>(k) / 4 + 64; }
TW_FN constexpr double cut_of(bool cuts, bool fast, i64 k) {
  return !cuts ? 0 : 9.765625e-4 * (fast ? static_cast<double>(k) / 32 : 4.0);
}

// The sums of one element.
struct ErrorTerms {
  double scale;      // alpha and the tensor-wide scales: what the sum of products is multiplied by
  double magnitude;  // sum |x w|, not multiplied by it
  double rounding;   // sum |x| dw, dw the error of a weight that was rounded when it was unpacked (rounding()); often 0
  double linear;     // sum x w, times scale
  double bias, residual;  // beta c
  double y;               // exact: (act(linear + bias) + residual) times y_factor
};

// b above: the error before y is stored. Of infinite terms y is an infinity, or what an activation makes of one, in any
// arithmetic.
TW_FN constexpr double arithmetic_error(const ErrorRules& rules, const ErrorTerms& t) {
  if (rules.exact) return 0;
  const double error =
      1.2 * magnitude_of(t.scale) * (t.magnitude * (rules.additions * 5.97e-8 + rules.cut) + t.rounding) +
      9.6e-7 *
          (magnitude_of(t.linear + t.bias) + magnitude_of(t.linear) + magnitude_of(t.bias) + magnitude_of(t.residual));
  const double b = rules.scaled ? error * magnitude_of(rules.y_factor) + 9.6e-7 * magnitude_of(t.y) : error;
  return b - b == 0 ? b : 0;
}
// From that to the bound, for y as it is stored.
TW_FN constexpr double stored_error(const ErrorRules& rules, double error, double stored) {
  return error + rules.store.relative * (magnitude_of(stored) + error) + rules.store.absolute;
}

}  // namespace tw::gemm
