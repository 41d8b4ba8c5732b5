// SPDX-License-Identifier: Apache-2.0
// Signed bytes with a float scale and a zero point per row: value = (code - zero) * scale. The rule is that of ONNX's
// DynamicQuantizeLinear, whose unsigned bytes are here 128 less, and so are its zero points: with least and most of the
// row and 0, scale = (most - least) / 255 (1 if that is 0), zero = nearest even of -least / scale, clamped to 0..255,
// less 128; code = nearest even of x / scale, plus zero, clamped to -128..127.
#pragma once
#include "formats/shared/row_scale.cuh"

namespace tw::fmt {

struct int8_asym_row : RowElements<tw::i8, ZeroPointItem> {
  static constexpr const char* title() { return "8-bit codes, a float scale and a zero point per row"; }
  static constexpr const char* source() { return "ONNX DynamicQuantizeLinear, codes and zero points less 128"; }
  // Half a step, and as much where the rounded zero point lets the end of the range be clamped.
  static constexpr Error error(int) { return {0, 0, 1.0 / 255, 0, 255 * least_float(), largest_scaled() / 2}; }
  static constexpr const char* encoder_name(int) { return "minmax"; }
  TW_MEMBER static RowItem row_item(float most, float below) {
    const float scale = scale_for(add_rn(most, below), 255.0f);
    return {scale, max2(min2(to_int(rint_even(div_rn(below, scale))), 255), 0) - 128, 0, 0};
  }

  TW_MEMBER static u32 code(float steps, i32 zero) {
    return static_cast<u32>(max2(min2(max2(min2(to_int(rint_even(steps)), 255), -255) + zero, 127), -128));
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, const RowItem& row, int) {
    data[0] = static_cast<u8>(code(div_rn(x[0], row.scale), row.zero));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, const RowItem& row, int) {
    return mul_rn(static_cast<float>(static_cast<i8>(data[0]) - row.zero), row.scale);
  }

  template <bool direct>
  TW_MEMBER static u32 codes(const float (&v)[4], const Divider& scale, const RowItem& row) {
    u32 q[4];
    TW_UNROLL for (int i = 0; i < 4; ++i) q[i] =
        code(direct ? scale.quotient_unsigned(v[i]) : div_rn(v[i], scale.divisor), row.zero);
    return pack_bytes(q[0], q[1], q[2], q[3]);
  }
};

}  // namespace tw::fmt
