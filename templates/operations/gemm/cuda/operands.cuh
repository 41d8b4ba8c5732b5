// SPDX-License-Identifier: Apache-2.0
// What kernels ask of the formats of x and w: the type that the multipliers take, strides in bytes, and the scales and
// zero points of rows that the epilogue applies.
#pragma once
#include "formats/shared/format.cuh"
#include "operations/gemm/params.cuh"

namespace tw::gemm {

// The type of a format's elements where each is stored by itself, else void.
template <class F>
using element_of = typename F::Element;

// alpha and the tensor-wide scales of both operands in one factor.
template <class X, class W>
TW_DEVICE float tensor_scale(const Args& args, const Shape& shape) {
  float s = shape.alpha * args.alpha;
  if constexpr (X::kGlobal) s = shape.global_divides ? s / *args.x.global : s * *args.x.global;
  if constexpr (W::kGlobal) s = shape.global_divides ? s / *args.w.global : s * *args.w.global;
  return s;
}

// What the epilogue needs of a row of x and of a row of w. Where rows have zero points, w's sum of codes becomes
// sum - k zero, which is what x's zero point is multiplied by.
template <class X>
TW_DEVICE fmt::row_item<X> x_item(const Args& args, i64 m) {
  return fmt::row_item_at<X>(args.x.scales, m);
}
template <class W>
TW_DEVICE fmt::row_item<W> w_item(const Args& args, i64 n, i64 k) {
  fmt::row_item<W> item = fmt::row_item_at<W>(args.w.scales, n);
  if constexpr (fmt::has_zero_point<W>()) item.sum -= static_cast<i32>(k) * item.zero;
  if constexpr (same<element_of<W>, signs8>()) item.ones = 2 * item.ones - 8 * static_cast<i32>(k);
  return item;
}
// From a sum of products of codes to one of the values that they stand for: codes less their rows' zero points.
// Intermediate results may wrap around.
template <class Sum, class X, class W>
TW_DEVICE Sum centred(Sum sum, const X&, const W&) {
  return sum;
}
// Of signs a, b the common ones were counted: sum (2a - 1)(2b - 1) = 4 sum ab - 2 sum a - (2 sum b - k).
template <u32 x_negative, u32 w_negative>
TW_DEVICE i32 centred(i32 common, const fmt::SignItem<x_negative>& x, const fmt::SignItem<w_negative>& w) {
  const i32 sum = 4 * common - 2 * x.ones - w.ones;
  return x_negative == w_negative ? sum : -sum;
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

// Bytes from one row of a stream to the next. Where scale_rows rows share scales, to the scales of the next such group.
// (Floats that the kernel quantizes have whole bytes per element; their rows need not be whole blocks apart.)
template <class F>
TW_DEVICE i64 data_stride(i64 cols) {
  if constexpr (F::kDataBytes % F::kBlock == 0)
    return cols * (F::kDataBytes / F::kBlock);
  else
    return cols / F::kBlock * F::kDataBytes;
}
template <class F>
TW_DEVICE i64 scale_stride(i64 cols) {
  return F::kRowScale ? fmt::row_bytes<F>() : cols / F::kBlock * F::kScaleBytes;
}

}  // namespace tw::gemm
