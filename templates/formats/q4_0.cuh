// SPDX-License-Identifier: Apache-2.0
// Q4_0 as ggml defines it (ggml-common.h, ggml-quants.c): 32 elements in 18 bytes, a half-precision scale d and 16
// bytes of codes; byte j holds element j low and element j + 16 high; value = (code - 8) d. Encoders: "ggml" (d =
// signed extreme / -8, half up), "amax7" (d = amax / 7, half away from zero, codes 1..15). Both divide by the d that is
// not yet rounded to half precision.
#pragma once
#include "formats/shared/blocks32.cuh"

namespace tw::fmt {

struct q4_0 : Nibbles32<18, 4, 2> {
  static constexpr const char* title() { return "ggml Q4_0: 4-bit codes, one half scale per 32"; }
  static constexpr const char* source() { return "ggml (quantize_row_q4_0_ref); amax7: this library"; }
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 2);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "ggml" : "amax7"; }
  // ggml's codes end at 7 on the side that is not the extreme's, a whole step short.
  static constexpr Error error(int i) { return i == 0 ? half_scale_error(1.0 / 8, 8) : half_scale_error(0.5 / 7, 7); }

  template <int encoder>
  TW_MEMBER static u32 code(float x, float inverse) {
    const float scaled = mul_rn(x, inverse);
    if constexpr (encoder == 0) {
      const i32 c = static_cast<i8>(to_int(add_rn(scaled, 8.5f)));
      return static_cast<u32>(min2(c, 15)) & 15u;
    } else {
      return static_cast<u32>(min2(max2(to_int_away(scaled), -8), 7) + 8);
    }
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int encoder) {
    const float extreme = extreme_of_32(x);
    const float d = encoder == 0 ? mul_rn(extreme, -0.125f) : div_rn(abs_f(extreme), 7.0f);
    const float inverse = inverse_of(d);
    write16(data, f32_to_f16_bits(d));
    write_codes(data, [&](int i) { return encoder == 0 ? code<0>(x[i], inverse) : code<1>(x[i], inverse); });
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(static_cast<float>(static_cast<i32>(stored_code(data, i)) - 8), f16_bits_to_f32(read16(data)));
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  // The element of largest magnitude, the first of equals.
  template <int E>
  TW_MEMBER static float extreme_of(const float (&v)[E], int lane) {
    float extreme = 0.0f;
    TW_UNROLL for (int i = 0; i < E; ++i) extreme = abs_f(extreme) < abs_f(v[i]) ? v[i] : extreme;
    TW_UNROLL for (int d = 1; d < 32 / E; d *= 2) {
      const float other = shuffle_xor(extreme, d);
      const bool equal = abs_f(other) == abs_f(extreme), later = (lane & d) == 0;
      if (abs_f(other) > abs_f(extreme) || (equal && !later)) extreme = other;
    }
    return extreme;
  }
  template <int encoder, int E>
  TW_MEMBER static void pack_codes(u32 (&words)[E / 4], const float (&v)[E], float inverse) {
    TW_UNROLL for (int i = 0; i < E; i += 4) words[i / 4] =
        pack_bytes(code<encoder>(v[i], inverse), code<encoder>(v[i + 1], inverse), code<encoder>(v[i + 2], inverse),
                   code<encoder>(v[i + 3], inverse));
  }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8*, float, int encoder) {
    const float extreme = extreme_of(v, lane);
    const float d = encoder == 0 ? mul_rn(extreme, -0.125f) : div_rn(abs_f(extreme), 7.0f);
    const float inverse = inverse_of(d);
    if (lane == 0) *reinterpret_cast<u16*>(data) = f32_to_f16_bits(d);
    u32 words[E / 4];
    if (encoder == 0)
      pack_codes<0>(words, v, inverse);
    else
      pack_codes<1>(words, v, inverse);
    // Elements 16 apart share a byte.
    if constexpr (E == 32) {
      TW_UNROLL for (int i = 0; i < 4; ++i) write_word(data + 2 + 4 * i, words[i] | (words[i + 4] << 4));
    } else {
      constexpr int kLow = 16 / E;  // lanes with low nibbles
      TW_UNROLL for (int i = 0; i < E / 4; ++i) {
        const u32 other = shuffle_xor(words[i], kLow);
        if (lane < kLow) write_word(data + 2 + E * lane + 4 * i, words[i] | (other << 4));
      }
    }
  }

  TW_CONSTANTS(bool, kOffset = false);
  // With the nibble in the upper half of a byte and its top bit flipped, the byte is 16 (code - 8).
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const u32 word = block_word<18>(u.raw, g, i);
      codes[i] = ((word << 4) & 0xf0f0f0f0u) ^ 0x80808080u;
      codes[4 + i] = (word & 0xf0f0f0f0u) ^ 0x80808080u;
    }
    scale = block_scale<18>(u.raw, g) * 0.0625f;
    offset = 0.0f;
  }

  template <class Element>
  using Tile = ScaledTile<Element, TileBase, 4, 8, 32>;
};

}  // namespace tw::fmt
