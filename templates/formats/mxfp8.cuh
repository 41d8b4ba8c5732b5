// SPDX-License-Identifier: Apache-2.0
// MXFP8 E4M3 (OCP Microscaling Formats v1.0) in the plain layout of torchao (mx_tensor.py): 32 elements share one E8M0
// scale X = 2^(b - 127), b = 255: NaN; stream `data` is one E4M3 code a byte; stream `scales` is one byte per 32; value
// = code X. A block here is two of the standard's, so that a row's scales can be read two bytes at a time. Encoder
// "floor": b - 127 = floor(log2 amax) - 8, at least -127, as section 6.3 of the standard says; elements E4M3 of x / X,
// nearest even, saturating; b = 0 for zeros, 255 if an element is infinite. Others: formats/shared/e8m0.cuh.
#pragma once
#include "formats/shared/e8m0.cuh"
#include "formats/shared/format.cuh"

namespace tw::fmt {

struct Mxfp8Elements {
  TW_CONSTANTS(int, kEmax = 8, kMantissa = 3, kBytes = 4);
  TW_CONSTANTS(u32, kLargest = 0x600000u);  // 448
  TW_MEMBER static u32 codes(const float (&v)[4]) { return pack_e4m3x2(v[0], v[1]) | pack_e4m3x2(v[2], v[3]) << 16; }
};

struct mxfp8 : MicroscaledBlocks<Mxfp8Elements> {
  static constexpr const char* title() { return "OCP MXFP8: E4M3 codes, an E8M0 scale per 32, two of them a block"; }
  static constexpr const char* source() { return "OCP Microscaling Formats v1.0 (6.3); layout of torchao"; }
  // Floor's scale may leave magnitudes of up to 512 scales, and even's of 496; codes end at 448, so larger ones are
  // clipped. Ceil's is more than amax / 448, of which codes below 2^-6 are multiples of 2^-9.
  static constexpr Error error(int i) {
    if (i == 0) return {0, 0.125, 0, 0, 5.8e-42};
    constexpr float kLargest = 2.9e38f;  // beyond, scales round up to what is no float
    return i == 1 ? Error{0.0625, 4.4e-6, 0, 0, 5.8e-42, kLargest} : Error{0, 0.097, 0, 0, 5.8e-42, kLargest};
  }
  TW_CONSTANTS(bool, kKeepsNan = true);
  template <class>
  TW_MEMBER static constexpr bool tiles_for() {
    return false;
  }
  TW_CONSTANTS(int, kLayout = 1, kBlock = 64, kBits = 8);
  TW_CONSTANTS(int, kDataBytes = 64, kScaleBytes = 2);
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::mxf8; }

  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    return mul_rn(e4m3_to_f32(data[i]), e8m0_to_f32(scales[i / 32]));
  }

  // Matrix units read such a matrix, or the reference does: there are no units of one thread.
  TW_CONSTANTS(int, kGroup = 0);
  TW_CONSTANTS(bool, kCodes = false, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int) { return false; }
};

}  // namespace tw::fmt
