// SPDX-License-Identifier: Apache-2.0
// Q5_0 as ggml defines it (ggml-common.h, ggml-quants.c): 32 elements in 22 bytes, a half-precision scale d, a word
// whose bit j is the upper bit of element j, and 16 bytes with the other four; byte j holds element j low and element j
// + 16 high; value = (code - 16) d. Encoder "ggml": d = signed extreme / -16; codes round half up against the d that is
// not yet rounded to half precision.
#pragma once
#include "formats/shared/blocks32.cuh"

namespace tw::fmt {

struct q5_0 : Nibbles32<22, 5, 6> {
  static constexpr const char* title() { return "ggml Q5_0: 5-bit codes, one half scale per 32"; }
  static constexpr const char* source() { return "ggml (quantize_row_q5_0_ref)"; }
  TW_CONSTANTS(int, kLayout = 2, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  static constexpr Error error(int) { return half_scale_error(1.0 / 16, 16); }  // codes end at 15, a whole step short

  TW_MEMBER static u32 code(float x, float inverse) {
    const i32 c = static_cast<i8>(to_int(add_rn(mul_rn(x, inverse), 16.5f)));
    return static_cast<u32>(min2(c, 31)) & 31u;
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    const float d = mul_rn(extreme_of_32(x), -0.0625f);
    const float inverse = inverse_of(d);
    write16(data, f32_to_f16_bits(d));
    write_codes(data, [&](int i) { return code(x[i], inverse); });
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(static_cast<float>(static_cast<i32>(stored_code(data, i)) - 16), f16_bits_to_f32(read16(data)));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(bool, kOffset = false);
  // A code without its upper bit set is 16 less: a byte's upper half becomes ones.
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const u32 lower = ~block_word<22>(u.raw, g, 0);
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const u32 word = block_word<22>(u.raw, g, 1 + i);
      codes[i] = (word & 0x0f0f0f0fu) | (bits_to_bytes(lower >> (4 * i)) * 0xf0u);
      codes[4 + i] = ((word >> 4) & 0x0f0f0f0fu) | (bits_to_bytes(lower >> (16 + 4 * i)) * 0xf0u);
    }
    scale = block_scale<22>(u.raw, g);
    offset = 0.0f;
  }

  template <class Element>
  using Tile = ScaledTile<Element, TileBase, 5, 16, 32>;
};

}  // namespace tw::fmt
