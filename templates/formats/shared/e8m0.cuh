// SPDX-License-Identifier: Apache-2.0
// E8M0 scales (OCP Microscaling Formats v1.0): X = 2^(code - 127), 255: NaN.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

// Section 6.3: code - 127 = floor(log2 amax) - emax, at least -127, emax being the exponent of the element's largest
// power of two; 0 for zeros, 255 if an element is infinite.
TW_FN u8 e8m0_of(float amax, int emax) {
  const i32 exponent = static_cast<i32>(bits_as<u32>(amax) >> 23);
  return static_cast<u8>(exponent == 255 ? 255 : max2(exponent - emax, 0));
}
// 1 / X; what X = NaN leaves of an element does not matter.
TW_FN float e8m0_inverse(u8 code) { return bits_as<float>(static_cast<u32>(code == 255 ? 0 : 254 - code) << 23); }
// X, and NaN for 255: an infinity plus 0 times itself.
TW_FN float e8m0_to_f32(u32 code) {
  const float v = bits_as<float>(max2(code << 23, 0x00400000u));
  return fma_rn(v, 0.0f, v);
}

// How the standard's formats are encoded: 64 elements, two scales. Elements: kEmax; kMantissa, its bits; kLargest,
// those of the largest magnitude as a single's; and codes(v), four elements, nearest even and saturating, as the kBytes
// lowest bytes of a word. Encoders differ in the scale: "floor" (section 6.3); "ceil", the least that clips nothing
// (cuBLAS, torchao's RCEIL); "even", floor of the largest magnitude rounded half up to an element's bits (torchao's
// EVEN, compressed-tensors).
template <class Elements>
struct MicroscaledBlocks : StandAlone {
  TW_CONSTANTS(int, kEncoders = 3, kErrorColumns = 32);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "floor" : i == 1 ? "ceil" : "even"; }
  TW_MEMBER static u8 scale_of(float amax, int encoder) {
    const u32 mantissa = bits_as<u32>(amax) & 0x7fffffu;
    const bool next = encoder == 1   ? mantissa > Elements::kLargest
                      : encoder == 2 ? mantissa >= 0x800000u - (0x400000u >> Elements::kMantissa)
                                     : false;
    return e8m0_of(amax, Elements::kEmax - (next ? 1 : 0));
  }
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  TW_MEMBER static constexpr CodeSteps steps(int) { return Elements::kBytes == 2 ? e2m1_steps() : e4m3_steps(); }
  using Element = void;
  using TileElement = void;

  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int encoder) {
    for (int b = 0; b < 2; ++b) {
      float largest = 0.0f;
      for (int i = 0; i < 32; ++i) largest = max2(largest, abs_f(x[32 * b + i]));
      scales[b] = scale_of(largest, encoder);
      const float inverse = e8m0_inverse(scales[b]);
      for (int i = 32 * b; i < 32 * b + 32; i += 4) {
        const float v[4] = {mul_rn(x[i], inverse), mul_rn(x[i + 1], inverse), mul_rn(x[i + 2], inverse),
                            mul_rn(x[i + 3], inverse)};
        const u32 codes = Elements::codes(v);
        for (int j = 0; j < Elements::kBytes; ++j)
          data[i / 4 * Elements::kBytes + j] = static_cast<u8>(codes >> (8 * j));
      }
    }
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float, int encoder) {
    constexpr int kLanes = 32 / E;  // of one scale
    const u8 scale = scale_of(largest_of<kLanes>(v), encoder);
    if (lane % kLanes == 0) scales[lane / kLanes] = scale;
    const float inverse = e8m0_inverse(scale);
    TW_UNROLL for (int i = 0; i < E; i += 4) {
      const float four[4] = {mul_rn(v[i], inverse), mul_rn(v[i + 1], inverse), mul_rn(v[i + 2], inverse),
                             mul_rn(v[i + 3], inverse)};
      u8* to = data + (E * lane + i) / 4 * Elements::kBytes;
      if constexpr (Elements::kBytes == 2)
        *reinterpret_cast<u16*>(to) = static_cast<u16>(Elements::codes(four));
      else
        *reinterpret_cast<u32*>(to) = Elements::codes(four);
    }
  }
};

}  // namespace tw::fmt
