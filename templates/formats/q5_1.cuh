// SPDX-License-Identifier: Apache-2.0
// Q5_1 as ggml defines it (ggml-common.h, ggml-quants.c): 32 elements in 24 bytes, half-precision d and m, a word whose
// bit j is the upper bit of element j, and 16 bytes with the other four; byte j holds element j low and element j + 16
// high; value = code d + m. Encoder "ggml": m = min, d = (max - min) / 31; codes round half up against the d and m that
// are not yet rounded to half precision.
#pragma once
#include "core/format.cuh"
#include "core/tile_fragments.cuh"

namespace tw::fmt {

struct q5_1 {
  static constexpr const char* kTitle = "ggml Q5_1: 5-bit codes, half scale and minimum per 32";
  static constexpr int kLayout = 2, kBlock = 32, kBits = 5;
  static constexpr int kDataBytes = 24, kScaleBytes = 0;
  static constexpr bool kRowScale = false, kGlobal = false;
  static constexpr int kEncoders = 1;
  static constexpr const char* encoder_name(int) { return "ggml"; }

  TW_MEMBER static u32 code(float x, float low, float inverse) {
    return static_cast<u32>(to_int(add_rn(mul_rn(sub_rn(x, low), inverse), 0.5f))) & 31u;
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    float low = 3.4028234663852886e38f, high = -low;
    for (int i = 0; i < 32; ++i) {
      if (x[i] < low) low = x[i];
      if (x[i] > high) high = x[i];
    }
    const float d = div_rn(sub_rn(high, low), 31.0f);
    const float inverse = d != 0.0f ? div_rn(1.0f, d) : 0.0f;
    write16(data, f32_to_f16_bits(d));
    write16(data + 2, f32_to_f16_bits(low));
    u32 upper = 0;
    for (int j = 0; j < 16; ++j) {
      const u32 first = code(x[j], low, inverse), second = code(x[j + 16], low, inverse);
      data[8 + j] = static_cast<u8>((first & 15u) | ((second & 15u) << 4));
      upper |= ((first >> 4) << j) | ((second >> 4) << (j + 16));
    }
    write16(data + 4, static_cast<u16>(upper));
    write16(data + 6, static_cast<u16>(upper >> 16));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    const u32 byte = data[8 + i % 16], low = i < 16 ? byte & 15u : byte >> 4, upper = (data[4 + i / 8] >> (i % 8)) & 1u;
    return add_rn(mul_rn(static_cast<float>(low | (upper << 4)), f16_bits_to_f32(read16(data))),
                  f16_bits_to_f32(read16(data + 2)));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  static constexpr int kGroup = 32;
  static constexpr bool kCodes = true, kOffset = true;
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32 || e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[E / 32 * 6];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E / 32 * 24, run_alignment(E / 32 * 24)>(u.raw, data + k / 32 * 24);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 32 * 24;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 32 * 24 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    load_shared_words<E / 32 * 24, run_alignment(E / 32 * 24)>(u.raw, raw + k / 32 * 24);
  }
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

  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) {
      return ((block[8 + i % 16] >> (i < 16 ? 0 : 4)) & 15u) | (((block[4 + i / 8] >> (i % 8)) & 1u) << 4);
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[8 + i % 16] |= static_cast<u8>((code & 15u) << (i < 16 ? 0 : 4));
      block[4 + i / 8] |= static_cast<u8>((code >> 4) << (i % 8));
    }
    TW_MEMBER static u8* item(u8* data, u8*, i64 group) { return data + group * 24; }
  };
  template <class Element>
  static constexpr bool kTiles = sizeof(Element) == 2 || same<Element, Codes>;
  template <class Element>
  using Tile = AffineTile<Element, TileBase, 5, 32, Minimum>;
};

}  // namespace tw::fmt
