// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels of fake_quant: what a call passes (tilewright::FakeQuantArgs, byte for byte) and what
// prepare() fixed; and what is computed of an element.
#pragma once
#include "backends/cuda/numeric.cuh"

namespace tw::fake_quant {

struct Args {
  const u8* x;
  const u8* dy;
  u8* y;
  const float* scale;
  const i32* zero_point;
  float* dscale;
  u32* workspace;  // the number of blocks that have ended, a word of nothing; then a sum of each block
  i64 rows;
  float factor;
};

struct Shape {
  i64 cols;
  i32 qmin, qmax;
};

enum class Grad { none, straight, learned };

// Codes of one scale. PyTorch's formulas (fake_quantize_per_tensor_affine and per_channel_affine): single precision,
// each operation rounded once, x times the rounded 1 / scale, to nearest even.
struct Codes {
  float scale, inverse, zero, least, most;  // least, most: qmin and qmax less the zero point
  float below, above;                       // qmin, qmax
  TW_MEMBER Codes(float by, i32 zero_point, const Shape& shape)
      : scale(by),
        inverse(div_rn(1.0f, by)),
        zero(static_cast<float>(zero_point)),
        least(static_cast<float>(shape.qmin - zero_point)),
        most(static_cast<float>(shape.qmax - zero_point)),
        below(static_cast<float>(shape.qmin)),
        above(static_cast<float>(shape.qmax)) {}

  // The code before it is limited; NaN of a NaN.
  TW_MEMBER float code(float v) const { return add_rn(rint_even(mul_rn(v, inverse)), zero); }
  // fake_quant(x); a NaN is the least code's, as on PyTorch's CUDA devices.
  TW_MEMBER float value(float x) const {
    const float c = code(x);
    const float limited = c >= below ? (c <= above ? c : above) : below;
    return mul_rn(sub_rn(limited, zero), scale);
  }
  TW_MEMBER bool inside(float x) const {
    const float c = code(x);
    return c >= below && c <= above;
  }
  // The gradient of x. A product, as PyTorch's: an infinite dy stays visible, as a NaN, where x is limited.
  TW_MEMBER float gradient(float x, float dy) const { return product(dy, inside(x) ? 1.0f : 0.0f); }
  // d fake_quant(x) / d scale (Esser et al., Learned step size quantization, equation 3, with a zero point).
  TW_MEMBER float slope(float x) const {
    const float v = mul_rn(x, inverse), rounded = rint_even(v), c = add_rn(rounded, zero);
    if (!(c >= below)) return least;
    return c <= above ? sub_rn(rounded, v) : most;
  }
  // A NaN becomes the one NaN that the device's multiplication has.
  TW_MEMBER static float product(float a, float b) {
    const float r = mul_rn(a, b);
#if defined(__CUDA_ARCH__)
    return r;
#else
    return is_nan(r) ? bits_as<float>(0x7fffffffu) : r;
#endif
  }
};

// Of the scale `index`.
TW_FN Codes codes_of(const Args& args, const Shape& shape, i64 index) {
  return Codes(args.scale[index], args.zero_point ? args.zero_point[index] : 0, shape);
}

}  // namespace tw::fake_quant
