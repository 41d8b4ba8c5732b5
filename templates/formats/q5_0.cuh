// SPDX-License-Identifier: Apache-2.0
// Q5_0 as ggml defines it (ggml-common.h, ggml-quants.c): 32 elements in 22 bytes, a half-precision scale d, a word
// whose bit j is the upper bit of element j, and 16 bytes with the other four; byte j holds element j low and element j
// + 16 high; value = (code - 16) d. Encoder "ggml": d = signed extreme / -16; codes round half up against the d that is
// not yet rounded to half precision.
#pragma once
#include "core/format.cuh"
#include "core/tile_fragments.cuh"

namespace tw::fmt {

struct q5_0 {
  static constexpr const char* kTitle = "ggml Q5_0: 5-bit codes, one half scale per 32";
  static constexpr int kLayout = 2, kBlock = 32, kBits = 5;
  static constexpr int kDataBytes = 22, kScaleBytes = 0;
  static constexpr bool kRowScale = false, kGlobal = false;
  static constexpr int kEncoders = 1;
  static constexpr const char* encoder_name(int) { return "ggml"; }

  TW_MEMBER static u32 code(float x, float inverse) {
    const i32 c = static_cast<i8>(to_int(add_rn(mul_rn(x, inverse), 16.5f)));
    return static_cast<u32>(min2(c, 31)) & 31u;
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    float extreme = 0.0f, largest = 0.0f;
    for (int i = 0; i < 32; ++i) {
      const float a = abs_f(x[i]);
      if (largest < a) largest = a, extreme = x[i];
    }
    const float d = mul_rn(extreme, -0.0625f);
    const float inverse = d != 0.0f ? div_rn(1.0f, d) : 0.0f;
    write16(data, f32_to_f16_bits(d));
    u32 upper = 0;
    for (int j = 0; j < 16; ++j) {
      const u32 low = code(x[j], inverse), high = code(x[j + 16], inverse);
      data[6 + j] = static_cast<u8>((low & 15u) | ((high & 15u) << 4));
      upper |= ((low >> 4) << j) | ((high >> 4) << (j + 16));
    }
    write16(data + 2, static_cast<u16>(upper));
    write16(data + 4, static_cast<u16>(upper >> 16));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    const u32 byte = data[6 + i % 16], low = i < 16 ? byte & 15u : byte >> 4, upper = (data[2 + i / 8] >> (i % 8)) & 1u;
    return mul_rn(static_cast<float>(static_cast<i32>(low | (upper << 4)) - 16), f16_bits_to_f32(read16(data)));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  static constexpr int kGroup = 32;
  static constexpr bool kCodes = true, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32 || e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[ceil_div(E / 32 * 22, 4)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E / 32 * 22, run_alignment(E / 32 * 22)>(u.raw, data + k / 32 * 22);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 32 * 22;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 32 * 22 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    load_shared_words<E / 32 * 22, run_alignment(E / 32 * 22)>(u.raw, raw + k / 32 * 22);
  }
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

  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) {
      return ((block[6 + i % 16] >> (i < 16 ? 0 : 4)) & 15u) | (((block[2 + i / 8] >> (i % 8)) & 1u) << 4);
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[6 + i % 16] |= static_cast<u8>((code & 15u) << (i < 16 ? 0 : 4));
      block[2 + i / 8] |= static_cast<u8>((code >> 4) << (i % 8));
    }
    TW_MEMBER static u8* item(u8* data, u8*, i64 group) { return data + group * 22; }
  };
  template <class Element>
  static constexpr bool kTiles = sizeof(Element) == 2 || same<Element, Codes>;
  template <class Element>
  using Tile = ScaledTile<Element, TileBase, 5, 16, 32>;
};

}  // namespace tw::fmt
