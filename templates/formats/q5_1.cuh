// SPDX-License-Identifier: Apache-2.0
// Q5_1 as ggml defines it (ggml-common.h, ggml-quants.c): 32 elements in 24 bytes, half-precision d and m, a word whose
// bit j is the upper bit of element j, and 16 bytes with the other four; byte j holds element j low and element j + 16
// high; value = code d + m. Encoder "ggml": m = min, d = (max - min) / 31; codes round half up against the d and m that
// are not yet rounded to half precision.
#pragma once
#include "formats/shared/blocks32.cuh"

namespace tw::fmt {

struct q5_1 : Nibbles32<24, 5, 8> {
  static constexpr const char* title() { return "ggml Q5_1: 5-bit codes, half scale and minimum per 32"; }
  static constexpr const char* source() { return "ggml (quantize_row_q5_1_ref)"; }
  TW_CONSTANTS(int, kLayout = 2, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  static constexpr Error error(int) { return half_minimum_error(31); }

  TW_MEMBER static u32 code(float x, float low, float inverse) {
    return static_cast<u32>(to_int(add_rn(mul_rn(sub_rn(x, low), inverse), 0.5f))) & 31u;
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    float low, high;
    range_of_32(x, low, high);
    const float d = div_rn(sub_rn(high, low), 31.0f);
    const float inverse = inverse_of(d);
    write16(data, f32_to_f16_bits(d));
    write16(data + 2, f32_to_f16_bits(low));
    write_codes(data, [&](int i) { return code(x[i], low, inverse); });
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return add_rn(mul_rn(static_cast<float>(stored_code(data, i)), f16_bits_to_f32(read16(data))),
                  f16_bits_to_f32(read16(data + 2)));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(bool, kOffset = true);
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const u32 upper = u.raw[6 * g + 1];
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const u32 word = u.raw[6 * g + 2 + i];
      codes[i] = (word & 0x0f0f0f0fu) | (bits_to_bytes(upper >> (4 * i)) << 4);
      codes[4 + i] = ((word >> 4) & 0x0f0f0f0fu) | (bits_to_bytes(upper >> (16 + 4 * i)) << 4);
    }
    scale = low_half<tw::f16>(u.raw[6 * g]);
    offset = -high_half<tw::f16>(u.raw[6 * g]);
  }

  template <class Element>
  using Tile = AffineTile<Element, TileBase, 5, 32, Minimum>;
};

}  // namespace tw::fmt
