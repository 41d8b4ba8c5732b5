// SPDX-License-Identifier: Apache-2.0
// Q6_K as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 210 bytes: the lower four bits of codes (ql,
// 128 bytes), the upper two (qh, 64), sixteen signed bytes of scales, one per 16 elements, and a half-precision d. Of
// the half h of a block and l < 32, byte 64 h + l of ql holds element 128 h + l low and 128 h + 64 + l high, byte 64 h
// + 32 + l the elements 32 after those; byte 32 h + l of qh holds two bits each of elements 128 h + l, + 32, + 64, +
// 96; value = d scale (code - 32). Encoders: "ggml", its search (formats/shared/k_search.cuh), and "plain"
// (formats/shared/k_quants.cuh): the extreme of every 16 becomes code 0; the largest scale becomes -128.
#pragma once
#include "formats/shared/k_search.cuh"

namespace tw::fmt {

struct q6_k : Blocks256 {
  static constexpr const char* title() { return "ggml Q6_K: 6-bit codes, 8-bit scales per 16, one half per 256"; }
  static constexpr const char* source() { return "ggml (block_q6_K, quantize_row_q6_K_ref); plain: this library"; }
  TW_CONSTANTS(int, kLayout = 2, kBits = 6, kDataBytes = 210);
  TW_CONSTANTS(int, kEncoders = 2, kErrorColumns = 16);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "plain" : "ggml"; }
  static constexpr Error error(int i) { return i == 0 ? signed_error(32, 128) : searched_signed_error(32, 128); }

  template <bool searched>
  TW_MEMBER static void encode_by(const float* x, const float* importance, u8* data) {
    for (int i = 0; i < 192; ++i) data[i] = 0;
    const auto store = [&](u16 d, const i8* scales) {
      for (int j = 0; j < 16; ++j) data[192 + j] = static_cast<u8>(scales[j]);
      write16(data + 208, d);
    };
    const auto put = [&](int i, u32 code) {
      const int h = i / 128, quarter = i / 32 % 4, l = i % 32;
      u8& low = data[64 * h + 32 * (quarter % 2) + l];
      u8& high = data[128 + 32 * h + l];
      low = static_cast<u8>(low | ((code & 15u) << (4 * (quarter / 2))));
      high = static_cast<u8>(high | ((code >> 4) << (2 * quarter)));
    };
    if constexpr (searched)
      search_signed<32, 128>(x, importance, store, put);
    else
      encode_signed<32, 128>(x, store, put);
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int encoder) {
    if (encoder == 0)
      encode_by<false>(x, nullptr, data);
    else
      encode_by<true>(x, nullptr, data);
  }
  TW_CONSTANTS(bool, kImportance = true);
  TW_MEMBER static void encode_weighted(const float* x, const float* importance, u8* data) {
    encode_by<true>(x, importance, data);
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    const int h = i / 128, quarter = i / 32 % 4, l = i % 32;
    const u32 low = (data[64 * h + 32 * (quarter % 2) + l] >> (4 * (quarter / 2))) & 15u;
    const u32 high = (data[128 + 32 * h + l] >> (2 * quarter)) & 3u;
    const float scale =
        mul_rn(f16_bits_to_f32(read16(data + 208)), static_cast<float>(static_cast<i8>(data[192 + i / 16])));
    return mul_rn(scale, static_cast<float>(static_cast<i32>(low | (high << 4)) - 32));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(int, kGroup = 16);
  TW_CONSTANTS(bool, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 128 || e == 256; }
  // Whole halves of a block; of 64 elements the nibbles of the other 64 come along.
  template <int E>
  struct Unit {
    u32 low[E == 256 ? 32 : 16], high[E == 256 ? 16 : 8], scales[E / 64], d;
    int quarter;  // of the first element
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / 256 * 210;
    const int within = static_cast<int>(k % 256), h = within / 128;
    u.quarter = within / 32 % 4;
    load_halves<E == 256 ? 128 : 64>(u.low, block + 64 * h);
    load_halves<E == 256 ? 64 : 32>(u.high, block + 128 + 32 * h);
    load_halves<E / 16>(u.scales, block + 192 + within / 16);
    u.d = load_global2(block + 208);
  }
  // A half's bits, d, and the tile's scales.
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return 98 + BK / 16;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) {
    const int within = static_cast<int>(k0 % 256), h = within / 128;
    return k0 / 256 * 210 + (byte < 64   ? 64 * h + byte
                             : byte < 96 ? 64 + 32 * h + byte
                             : byte < 98 ? 112 + byte
                                         : 94 + within / 16 + byte);
  }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64 k0) {
    static_assert(E == 64, "tiles are unpacked by 64");
    u.quarter = static_cast<int>((k0 + k) / 32 % 4);
    load_shared_words<64, 2>(u.low, raw);
    load_shared_words<32, 2>(u.high, raw + 64);
    load_shared_words<E / 16, 2>(u.scales, raw + 98 + k / 16);
    u.d = *reinterpret_cast<const u16*>(raw + 96);
  }
  // With a code in the upper six bits of a byte and its top bit flipped, the byte is 4 (code - 32).
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[4], float& scale, float& offset) {
    const int h = g / 8, quarter = E == 64 ? u.quarter + g / 2 : g % 8 / 2;
    const int low = 16 * h + (E == 64 ? 4 * g : 8 * (g / 2 % 2) + 4 * (g % 2)), high = 8 * h + 4 * (g % 2);
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const u32 nibbles = (u.low[low + i] >> (4 * (quarter / 2))) & 0x0f0f0f0fu;
      const u32 upper = (u.high[high + i] >> (2 * quarter)) & 0x03030303u;
      codes[i] = ((nibbles << 2) | (upper << 6)) ^ 0x80808080u;
    }
    const i8 stored = static_cast<i8>(u.scales[g / 4] >> (8 * (g % 4)));
    scale = f16_bits_to_f32(static_cast<u16>(u.d)) * static_cast<float>(stored) * 0.25f;
    offset = 0.0f;
  }

  struct TileBase : HalfAt<210, 208> {
    TW_MEMBER static u32 code(const u8* block, int i) {
      const int h = i / 128, quarter = i / 32 % 4, l = i % 32;
      return ((block[64 * h + 32 * (quarter % 2) + l] >> (4 * (quarter / 2))) & 15u) |
             (((block[128 + 32 * h + l] >> (2 * quarter)) & 3u) << 4);
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      const int h = i / 128, quarter = i / 32 % 4, l = i % 32;
      block[64 * h + 32 * (quarter % 2) + l] |= static_cast<u8>((code & 15u) << (4 * (quarter / 2)));
      block[128 + 32 * h + l] |= static_cast<u8>((code >> 4) << (2 * quarter));
    }
    TW_MEMBER static i8 scale(const u8* block, int j) { return static_cast<i8>(block[192 + j]); }
    TW_MEMBER static void put_scale(u8* block, int j, i8 scale) { block[192 + j] = static_cast<u8>(scale); }
  };
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = SixteensTile<Element, TileBase, 6, 32>;
};

}  // namespace tw::fmt
