// SPDX-License-Identifier: Apache-2.0
// FP8 E4M3 with one float scale per row: scale = amax / 448 (1 if that is 0), code = e4m3(x / scale), nearest even,
// saturating; value = code * scale.
#pragma once
#include "formats/shared/row_scale.cuh"

namespace tw::fmt {

struct e4m3_row : RowElements<tw::e4m3> {
  static constexpr const char* title() { return "FP8 E4M3, one float scale per row"; }
  static constexpr const char* source() { return "the usual amax scaling, per row"; }
  static constexpr Error error(int) { return scaled_error<tw::e4m3>(); }
  static constexpr const char* encoder_name(int) { return "amax448"; }
  TW_MEMBER static float row_scale(float amax) { return scale_for(amax, 448.0f); }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float scale, int) {
    data[0] = f32_to_e4m3(div_rn(x[0], scale));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float scale, int) {
    return mul_rn(e4m3_to_f32(data[0]), scale);
  }

  template <bool direct>
  TW_MEMBER static u32 codes(const float (&v)[4], const Divider& scale, float) {
    return e4m3_codes<direct>(v, scale);
  }
};

}  // namespace tw::fmt
