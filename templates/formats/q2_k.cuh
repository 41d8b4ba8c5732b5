// SPDX-License-Identifier: Apache-2.0
// Q2_K as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 84 bytes: sixteen bytes with a 4-bit scale
// low and a 4-bit minimum high, one per 16 elements, 64 bytes of codes, half-precision d and dmin; element 128 h + 32 t
// + l is bits 2 t of byte 32 h + l of the codes; value = d scale code - dmin minimum. Encoders: "plain"
// (formats/shared/k_quants.cuh), and "ggml", with its search (formats/shared/k_search.cuh).
#pragma once
#include "formats/shared/k_search.cuh"

namespace tw::fmt {

struct q2_k : Blocks256 {
  static constexpr const char* title() {
    return "ggml Q2_K: 2-bit codes, 4-bit scales and minima per 16, two halves per 256";
  }
  static constexpr const char* source() { return "ggml (block_q2_K, quantize_row_q2_K_ref); plain: this library"; }
  TW_CONSTANTS(int, kLayout = 1, kBits = 2, kDataBytes = 84);
  TW_CONSTANTS(int, kEncoders = 2, kErrorColumns = 16);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "plain" : "ggml"; }
  static constexpr Error error(int i) { return i == 0 ? minima_error(3, 15) : searched_minima_error(3, 15); }

  template <bool searched>
  TW_MEMBER static void encode_by(const float* x, const float* importance, u8* data) {
    for (int i = 16; i < 80; ++i) data[i] = 0;
    const auto store = [&](u16 d, u16 dmin, const u8* scales, const u8* minima) {
      for (int j = 0; j < 16; ++j) data[j] = static_cast<u8>(scales[j] | (minima[j] << 4));
      write16(data + 80, d);
      write16(data + 82, dmin);
    };
    const auto put = [&](int i, u32 code) {
      u8& bits = data[16 + 32 * (i / 128) + i % 32];
      bits = static_cast<u8>(bits | (code << (2 * (i / 32 % 4))));
    };
    if constexpr (searched)
      search_with_minima<16, 3, 15>(x, importance, {-0.5f, 0.1f, 15, true}, store, put);
    else
      encode_with_minima<16, 3, 15>(x, store, put);
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
    const u32 code = (data[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3u, pair = data[i / 16];
    const float d = mul_rn(f16_bits_to_f32(read16(data + 80)), static_cast<float>(pair & 15u));
    const float m = mul_rn(f16_bits_to_f32(read16(data + 82)), static_cast<float>(pair >> 4));
    return sub_rn(mul_rn(d, static_cast<float>(code)), m);
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(int, kGroup = 16);
  TW_CONSTANTS(bool, kOffset = true);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 128 || e == 256; }
  // Codes of whole halves of a block; scales and minima are the unit's own.
  template <int E>
  struct Unit {
    u32 raw[E == 256 ? 16 : 8], pairs[E / 64], d;
    int first;  // 32s before the first element
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / 256 * 84;
    u.first = E == 256 ? 0 : static_cast<int>(k / 32 % 8);
    load_words<E == 256 ? 64 : 32, 4>(u.raw, block + 16 + u.first / 4 * 32);
    load_words<E / 16, 4>(u.pairs, block + 2 * u.first);
    u.d = load_global4(block + 80);
  }
  // A half's codes, its scales and minima, d and dmin.
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return 44;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) {
    const int half = static_cast<int>(k0 % 256) / 128;
    return k0 / 256 * 84 + (byte < 32 ? 16 + 32 * half + byte : byte < 40 ? 8 * half + byte - 32 : 40 + byte);
  }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64 k0) {
    static_assert(E == 64, "tiles are unpacked by 64");
    u.first = static_cast<int>((k0 + k) / 32 % 8);
    load_shared_words<32, 4>(u.raw, raw);
    u.pairs[0] = *reinterpret_cast<const u32*>(raw + 32 + 2 * (u.first % 4));
    u.d = *reinterpret_cast<const u32*>(raw + 40);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[4], float& scale, float& offset) {
    const int shift = 2 * ((u.first + g / 2) % 4), low = (E == 256 ? g / 8 * 8 : 0) + 4 * (g % 2);
    TW_UNROLL for (int i = 0; i < 4; ++i) codes[i] = (u.raw[low + i] >> shift) & 0x03030303u;
    const u32 pair = u.pairs[g / 4] >> (8 * (g % 4));
    scale = low_half<tw::f16>(u.d) * static_cast<float>(pair & 15u);
    offset = high_half<tw::f16>(u.d) * static_cast<float>((pair >> 4) & 15u);
  }

  // A row's chunk is its sixteen bytes of scales and minima, d and dmin.
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  struct TileBase {
    TW_CONSTANTS(int, kScaleK = 256, kScaleBytes = 20, kGroups = 4);
    TW_CONSTANTS(bool, kOffset = true);
    TW_MEMBER static u32 code(const u8* block, int i) {
      return (block[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3u;
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[16 + 32 * (i / 128) + i % 32] |= static_cast<u8>(code << (2 * (i / 32 % 4)));
    }
    TW_MEMBER static int place(int i) { return i < 16 ? i : 64 + i; }  // in a block, of a chunk's byte
    TW_MEMBER static void put_scales(u8* out, const u8* data, const u8*, i64 k) {
      for (int i = 0; i < 20; ++i) out[i] = data[k / 256 * 84 + place(i)];
    }
    TW_MEMBER static void take_scales(const u8* in, u8* data, u8*, i64 k) {
      for (int i = 0; i < 20; ++i) data[k / 256 * 84 + place(i)] = in[i];
    }
  };
  struct AfterMmaTile : TileBase, Integers<tw::bf16, 2, 0> {
    struct Scales {
      float d[4][2], m[4][2];
    };  // [group][row]
    TW_MEMBER static Scales scales(const u8* chunk, int pair, int part) {
      Scales s;
      TW_UNROLL for (int r = 0; r < 2; ++r) {
        const u32* row = reinterpret_cast<const u32*>(chunk + 40 * pair + 20 * r);
        const u32 low = row[part] & 0x0f0f0f0fu, high = row[part] & 0xf0f0f0f0u;
        const ByteTimes d = ByteTimes::of(low_half<tw::f16>(row[4])),
                        m = ByteTimes::of(-0.0625f * high_half<tw::f16>(row[4]));
        TW_UNROLL for (u32 g = 0; g < 4; ++g) s.d[g][r] = d.at(low, g), s.m[g][r] = m.at(high, g);
      }
      return s;
    }
    TW_MEMBER static float row_scale(const Scales& s, int row, int step) { return s.d[step][row]; }
    TW_MEMBER static float row_minimum(const Scales& s, int row, int step) { return s.m[step][row]; }
  };
  template <class Element>
  struct Tile : TileBase {
    using AfterMma = AfterMmaForBf16<Element, AfterMmaTile, Tile>;
    TW_CONSTANTS(int, kBits = 2);
    TW_MEMBER static constexpr float factor() { return Line<Element>::factor(); }
    TW_CONSTANTS(bool, kScaleAfterMma = false);
    TW_MEMBER static constexpr double rounding() { return line_rounding<Element>(); }
    struct Scales {
      Line<Element> of[4][2];
    };  // [group][row]
    TW_MEMBER static Scales scales(const u8* chunk, int pair, int part) {
      Scales s;
      TW_UNROLL for (int r = 0; r < 2; ++r) {
        const u32* row = reinterpret_cast<const u32*>(chunk + 40 * pair + 20 * r);
        if constexpr (same<Element, tw::f16>()) {
          TW_UNROLL for (u32 g = 0; g < 4; ++g) {
            // Below 1024 the scale, in the lower nibble; below 64, sixteen times finer, the minimum.
            const u32 both = prmt(row[part], 0x00005464u, 0x5040u + 0x0101u * g) & 0xfff0ff0fu;
            s.of[g][r] = line_of(sub_f16x2(both, 0x54006400u), row[4]);
          }
        } else {
          const MinimaLines<2> lines(low_half<tw::f16>(row[4]), 0.0625f * high_half<tw::f16>(row[4]), r);
          const u32 scales = row[part] & 0x0f0f0f0fu, minima = row[part] & 0xf0f0f0f0u;
          TW_UNROLL for (u32 g = 0; g < 4; ++g) s.of[g][r] = lines.at(scales, g, minima, g);
        }
      }
      return s;
    }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
      Line<Element>::template values<2>(w, step, scales.of[step], a);
    }
  };
};

}  // namespace tw::fmt
