// SPDX-License-Identifier: Apache-2.0
// MXFP8 E4M3 (OCP Microscaling Formats v1.0) in the plain layout of torchao (mx_tensor.py): 32 elements share one E8M0 scale X =
// 2^(b - 127), b = 255: NaN; stream `data` is one E4M3 code a byte; stream `scales` is one byte per 32; value = code X. A block
// here is two of the standard's, so that a row's scales can be read two bytes at a time.
// Encoder "floor": b - 127 = floor(log2 amax) - 8, at least -127, as section 6.3 of the standard says; elements E4M3 of x / X,
// nearest even, saturating; b = 0 for zeros, 255 if an element is infinite.
#pragma once
#include "core/e8m0.cuh"
#include "core/format.cuh"

namespace tw::fmt {

struct mxfp8 {
  static constexpr const char* kTitle = "OCP MXFP8: E4M3 codes, an E8M0 scale per 32, two of them a block";
  static constexpr int kLayout = 1, kBlock = 64, kBits = 8;
  static constexpr int kDataBytes = 64, kScaleBytes = 2;
  static constexpr bool kRowScale = false, kGlobal = false;
  static constexpr int kEncoders = 1;
  static constexpr const char* encoder_name(int) { return "floor"; }
  static constexpr int kEmax = 8;
  static constexpr ScaledMma kScaledMma = ScaledMma::mxf8;

  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int) {
    for (int b = 0; b < 2; ++b) {
      float largest = 0.0f;
      for (int i = 0; i < 32; ++i) largest = max2(largest, abs_f(x[32 * b + i]));
      scales[b] = e8m0_of(largest, kEmax);
      const float inverse = e8m0_inverse(scales[b]);
      for (int i = 32 * b; i < 32 * b + 32; ++i) data[i] = f32_to_e4m3(mul_rn(x[i], inverse));
    }
  }
  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    return mul_rn(e4m3_to_f32(data[i]), e8m0_to_f32(scales[i / 32]));
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  template <int E> TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float, int) {
    constexpr int kLanes = 32 / E;  // of one scale
    const u8 scale = e8m0_of(largest_of<kLanes>(v), kEmax);
    if (lane % kLanes == 0) scales[lane / kLanes] = scale;
    const float inverse = e8m0_inverse(scale);
    TW_UNROLL for (int i = 0; i < E; i += 4)
      *reinterpret_cast<u32*>(data + E * lane + i) = pack_e4m3x2(mul_rn(v[i], inverse), mul_rn(v[i + 1], inverse)) |
                                                     pack_e4m3x2(mul_rn(v[i + 2], inverse), mul_rn(v[i + 3], inverse)) << 16;
  }

  // Matrix units read such a matrix, or the reference does: there are no units of one thread.
  static constexpr int kGroup = 0;
  static constexpr bool kCodes = false, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int) { return false; }
};

}  // namespace tw::fmt
