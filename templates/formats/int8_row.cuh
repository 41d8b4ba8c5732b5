// SPDX-License-Identifier: Apache-2.0
// Signed bytes with one float scale per row, the symmetric rule of NVIDIA Model Optimizer with a narrow range
// (tensor_quant_gpu.cu): scale = amax / 127 (1 if that is 0), code = nearest even of x / scale, clamped to -127..127;
// value = code * scale.
#pragma once
#include "formats/shared/row_scale.cuh"

namespace tw::fmt {

struct int8_row : RowElements<tw::i8> {
  static constexpr const char* title() { return "8-bit codes, one float scale per row"; }
  static constexpr const char* source() { return "NVIDIA Model Optimizer, narrow range (tensor_quant_gpu.cu)"; }
  static constexpr Error error(int) { return scaled_error<i8>(); }
  static constexpr const char* encoder_name(int) { return "amax127"; }
  TW_MEMBER static float row_scale(float amax) { return scale_for(amax, 127.0f); }

  TW_MEMBER static u32 code(float steps) { return static_cast<u32>(max2(min2(to_int(rint_even(steps)), 127), -127)); }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float scale, int) {
    data[0] = static_cast<u8>(code(div_rn(x[0], scale)));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float scale, int) {
    return mul_rn(static_cast<float>(static_cast<i8>(data[0])), scale);
  }

  TW_MEMBER static constexpr CodeSteps steps(int) { return {8, false, -127, 127}; }
  template <bool direct>
  TW_MEMBER static u32 codes(const float (&v)[4], const Divider& scale, float) {
    u32 q[4];
    TW_UNROLL for (int i = 0; i < 4; ++i) q[i] =
        code(direct ? scale.quotient_unsigned(v[i]) : div_rn(v[i], scale.divisor));
    return pack_bytes(q[0], q[1], q[2], q[3]);
  }
};

}  // namespace tw::fmt
