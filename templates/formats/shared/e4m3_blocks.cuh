// SPDX-License-Identifier: Apache-2.0
// Shared by the formats of E4M3 codes with a float scale per 128 columns. The stream `data` has one code per byte;
// scale = amax / 448 (1 if that is 0), code = e4m3(x / scale), nearest even, saturating; value = code * scale.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

struct E4m3Blocks {
  using Element = tw::e4m3;
  using TileElement = tw::e4m3;
  TW_CONSTANTS(int, kLayout = 1, kBlock = 128, kBits = 8);
  TW_CONSTANTS(int, kDataBytes = 128, kScaleBytes = 4);
  TW_CONSTANTS(bool, kRowScale = false, kGlobal = false, kImportance = false);
  using RowItem = float;
  TW_CONSTANTS(int, kEncoders = 1, kErrorColumns = 128);
  static constexpr Error error(int) { return scaled_error<tw::e4m3>(); }
  TW_CONSTANTS(bool, kKeepsNan = true);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  TW_MEMBER static constexpr CodeSteps steps(int) { return e4m3_steps(); }
  template <class>
  TW_MEMBER static constexpr bool tiles_for() {
    return false;
  }
  static constexpr const char* encoder_name(int) { return "amax448"; }

  TW_MEMBER static float scale_for(float amax) { return fmt::scale_for(amax, 448.0f); }
  TW_MEMBER static float read_scale(const u8* scales) {
    float scale;
    TW_COPY(&scale, scales, 4);
    return scale;
  }
  TW_MEMBER static void write_scale(u8* scales, float scale) { TW_COPY(scales, &scale, 4); }
  TW_MEMBER static void encode_with(const float* x, u8* data, float scale) {
    for (int i = 0; i < kBlock; ++i) data[i] = f32_to_e4m3(div_rn(x[i], scale));
  }
  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    return mul_rn(e4m3_to_f32(data[i]), read_scale(scales));
  }

  // Matrix units read such a matrix, or the reference does: there are no units of one thread.
  TW_CONSTANTS(int, kGroup = 0);
  TW_CONSTANTS(bool, kCodes = false, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int) { return false; }
};

}  // namespace tw::fmt
