// SPDX-License-Identifier: Apache-2.0
// Q5_K as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 176 bytes: half-precision d and dmin, twelve
// bytes of 6-bit (scale, minimum) pairs as in Q4_K, 32 bytes of upper bits and 128 of the lower four; byte 32 p + l of
// those holds element 64 p + l low and 64 p + 32 + l high, bit j of byte l of the upper bits is that of element 32 j +
// l; value = d scale code - dmin minimum. Encoder "plain" (core/k_quants.cuh): without ggml's search.
#pragma once
#include "core/k_quants.cuh"
#include "core/tiles.cuh"
#include "formats/q4_k.cuh"

namespace tw::fmt {

struct q5_k {
  static constexpr const char* kTitle = "ggml Q5_K: 5-bit codes, 6-bit scales and minima per 32, two halves per 256";
  static constexpr int kLayout = 2, kBlock = 256, kBits = 5;
  static constexpr int kDataBytes = 176, kScaleBytes = 0;
  static constexpr bool kRowScale = false, kGlobal = false;
  static constexpr int kEncoders = 1;
  static constexpr const char* encoder_name(int) { return "plain"; }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int i = 16; i < 176; ++i) data[i] = 0;
    encode_with_minima<32, 31, 63>(
        x,
        [&](u16 d, u16 dmin, const u8* scales, const u8* minima) {
          write16(data, d);
          write16(data + 2, dmin);
          u8* s = data + 4;
          for (int j = 0; j < 4; ++j) {
            s[j] = static_cast<u8>(scales[j] | ((scales[j + 4] >> 4) << 6));
            s[j + 4] = static_cast<u8>(minima[j] | ((minima[j + 4] >> 4) << 6));
            s[j + 8] = static_cast<u8>((scales[j + 4] & 15u) | ((minima[j + 4] & 15u) << 4));
          }
        },
        [&](int i, u32 code) {
          u8& low = data[48 + 32 * (i / 64) + i % 32];
          u8& high = data[16 + i % 32];
          low = static_cast<u8>(low | ((code & 15u) << (4 * (i / 32 % 2))));
          high = static_cast<u8>(high | ((code >> 4) << (i / 32)));
        });
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    const int j = i / 32;
    const u32 low = (data[48 + 32 * (i / 64) + i % 32] >> (4 * (j % 2))) & 15u, high = (data[16 + i % 32] >> j) & 1u;
    const float d = mul_rn(f16_bits_to_f32(read16(data)), static_cast<float>(q4_k::scale_of(data + 4, j)));
    const float m = mul_rn(f16_bits_to_f32(read16(data + 2)), static_cast<float>(q4_k::minimum_of(data + 4, j)));
    return sub_rn(mul_rn(d, static_cast<float>(low | (high << 4))), m);
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  static constexpr int kGroup = 32;
  static constexpr bool kCodes = true, kOffset = true;
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 256; }
  // The header, all upper bits, and the lower ones of 64 (one pair of sub-blocks) or 256 elements.
  template <int E>
  struct Unit {
    u32 header[4], high[8], raw[E / 8];
    int first;  // sub-block of the first element
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / 256 * 176;
    u.first = E == 256 ? 0 : static_cast<int>(k / 32 % 8);
    load_words<16, 16>(u.header, block);
    load_words<32, 16>(u.high, block + 16);
    load_words<E / 2, 16>(u.raw, block + 48 + u.first * 16);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return 48 + BK / 2;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) {
    return k0 / 256 * 176 + (byte < 48 ? byte : static_cast<int>(k0 % 256) / 2 + byte);
  }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64 k0) {
    u.first = static_cast<int>((k0 + k) / 32 % 8);
    load_shared_words<16, 16>(u.header, raw);
    load_shared_words<32, 16>(u.high, raw + 16);
    load_shared_words<E / 2, 16>(u.raw, raw + 48 + k / 2);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const int j = u.first + g;
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] =
        ((u.raw[8 * (g / 2) + i] >> (4 * (g % 2))) & 0x0f0f0f0fu) | (((u.high[i] >> j) & 0x01010101u) << 4);
    // Eight 6-bit pairs in three words: all scales, then all minima, four to a word.
    const u32 a = u.header[1], b = u.header[2], c = u.header[3];
    const u32 scales = j < 4 ? a & 0x3f3f3f3fu : (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
    const u32 minima = j < 4 ? b & 0x3f3f3f3fu : ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
    const int shift = 8 * (j % 4);
    scale = low_half<tw::f16>(u.header[0]) * static_cast<float>((scales >> shift) & 255u);
    offset = high_half<tw::f16>(u.header[0]) * static_cast<float>((minima >> shift) & 255u);
  }

  template <class Element>
  static constexpr bool kTiles = sizeof(Element) == 2 || same<Element, Codes>;
  template <class Element>
  using Tile = MinimaTile<Element, 5>;
};

}  // namespace tw::fmt
