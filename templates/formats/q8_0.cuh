// SPDX-License-Identifier: Apache-2.0
// Q8_0 as ggml defines it: 32 elements in 34 bytes, a half-precision scale d = amax / 127 and 32 signed codes, rounded
// half away from zero against the d that is not yet rounded to half precision; value = code d.
#pragma once
#include "core/format.cuh"
#include "core/tile_fragments.cuh"

namespace tw::fmt {

struct q8_0 {
  static constexpr const char* kTitle = "ggml Q8_0: 8-bit codes, one half scale per 32";
  static constexpr int kLayout = 1, kBlock = 32, kBits = 8;
  static constexpr int kDataBytes = 34, kScaleBytes = 0;
  static constexpr bool kRowScale = false, kGlobal = false;
  static constexpr int kEncoders = 1;
  static constexpr const char* encoder_name(int) { return "ggml"; }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    float largest = 0.0f;
    for (int i = 0; i < 32; ++i) largest = max2(largest, abs_f(x[i]));
    const float d = div_rn(largest, 127.0f);
    const float inverse = d != 0.0f ? div_rn(1.0f, d) : 0.0f;
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
    const float inverse = d != 0.0f ? div_rn(1.0f, d) : 0.0f;
    if (lane == 0) *reinterpret_cast<u16*>(data) = f32_to_f16_bits(d);
    TW_UNROLL for (int i = 0; i < E; i += 4) {
      u32 q[4];
      TW_UNROLL for (int j = 0; j < 4; ++j) q[j] = static_cast<u32>(to_int_away(mul_rn(v[i + j], inverse)));
      write_word(data + 2 + E * lane + i, pack_bytes(q[0], q[1], q[2], q[3]));
    }
  }

  static constexpr int kGroup = 32;
  static constexpr bool kCodes = true, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32 || e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[ceil_div(E / 32 * 34, 4)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E / 32 * 34, run_alignment(E / 32 * 34)>(u.raw, data + k / 32 * 34);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 32 * 34;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 32 * 34 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    load_shared_words<E / 32 * 34, run_alignment(E / 32 * 34)>(u.raw, raw + k / 32 * 34);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] = block_word<34>(u.raw, g, i);
    scale = block_scale<34>(u.raw, g);
    offset = 0.0f;
  }

  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) { return block[2 + i] ^ 0x80u; }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) { block[2 + i] = static_cast<u8>(code ^ 0x80u); }
    TW_MEMBER static u8* item(u8* data, u8*, i64 group) { return data + group * 34; }
  };
  template <class Element>
  static constexpr bool kTiles = sizeof(Element) == 2 || same<Element, Codes>;
  template <class Element>
  using Tile = ScaledTile<Element, TileBase, 8, 128, 32>;
};

}  // namespace tw::fmt
