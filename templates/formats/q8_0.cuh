// SPDX-License-Identifier: Apache-2.0
// Q8_0 as ggml defines it: 32 elements in 34 bytes, a half-precision scale d = amax / 127 and 32 signed codes, rounded
// half away from zero against the d that is not yet rounded to half precision; value = code d.
#pragma once
#include "formats/shared/blocks32.cuh"

namespace tw::fmt {

struct q8_0 : Weights32<34, 8> {
  static constexpr const char* title() { return "ggml Q8_0: 8-bit codes, one half scale per 32"; }
  static constexpr const char* source() { return "ggml (quantize_row_q8_0_ref)"; }
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  static constexpr Error error(int) { return half_scale_error(0.5 / 127, 127); }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    const float d = div_rn(abs_f(extreme_of_32(x)), 127.0f);
    const float inverse = inverse_of(d);
    write16(data, f32_to_f16_bits(d));
    for (int i = 0; i < 32; ++i) data[2 + i] = static_cast<u8>(to_int_away(mul_rn(x[i], inverse)));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(static_cast<float>(static_cast<i8>(data[2 + i])), f16_bits_to_f32(read16(data)));
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8*, float, int) {
    const float d = div_rn(largest_of<32 / E>(v), 127.0f);
    const float inverse = inverse_of(d);
    if (lane == 0) *reinterpret_cast<u16*>(data) = f32_to_f16_bits(d);
    TW_UNROLL for (int i = 0; i < E; i += 4) {
      u32 q[4];
      TW_UNROLL for (int j = 0; j < 4; ++j) q[j] = static_cast<u32>(to_int_away(mul_rn(v[i + j], inverse)));
      write_word(data + 2 + E * lane + i, pack_bytes(q[0], q[1], q[2], q[3]));
    }
  }

  TW_CONSTANTS(bool, kOffset = false);
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] = block_word<34>(u.raw, g, i);
    scale = block_scale<34>(u.raw, g);
    offset = 0.0f;
  }

  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) { return block[2 + i] ^ 0x80u; }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) { block[2 + i] = static_cast<u8>(code ^ 0x80u); }
    TW_MEMBER static u8* item(u8* data, u8*, i64 group) { return data + group * kDataBytes; }
  };
  template <class Element>
  using Tile = ScaledTile<Element, TileBase, 8, 128, 32>;
};

}  // namespace tw::fmt
