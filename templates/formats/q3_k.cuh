// SPDX-License-Identifier: Apache-2.0
// Q3_K as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 110 bytes: 32 bytes of upper bits, 64 of the
// lower two, twelve of 6-bit scales, one per 16 elements, and a half-precision d. Element 128 h + 32 t + l has bits 2 t
// of byte 32 h + l of the lower bits and bit 4 h + t of byte l of the upper ones. Scale j: four bits are the nibble j /
// 8 of byte j % 8, the upper two bits 2 (j / 4) of byte 8 + j % 4; 32 is subtracted. value = d (scale - 32) (code - 4).
// Encoders: "ggml", its search (formats/shared/k_search.cuh), and "plain" (formats/shared/k_quants.cuh): the extreme of
// every 16 becomes code 0; the largest scale becomes -32.
#pragma once
#include "formats/shared/k_search.cuh"

namespace tw::fmt {

struct q3_k : Blocks256 {
  static constexpr const char* title() { return "ggml Q3_K: 3-bit codes, 6-bit scales per 16, one half per 256"; }
  static constexpr const char* source() { return "ggml (block_q3_K, quantize_row_q3_K_ref); plain: this library"; }
  TW_CONSTANTS(int, kLayout = 2, kBits = 3, kDataBytes = 110);
  TW_CONSTANTS(int, kEncoders = 2, kErrorColumns = 16);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "plain" : "ggml"; }
  static constexpr Error error(int i) { return i == 0 ? signed_error(4, 32) : searched_signed_error(4, 32); }

  // Element i's code and the j-th scale minus 32; the others put them where bits are zero.
  struct TileBase : HalfAt<110, 108> {
    TW_MEMBER static u32 code(const u8* block, int i) {
      return ((block[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3u) |
             (((block[i % 32] >> (i / 32)) & 1u) << 2);
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[32 + 32 * (i / 128) + i % 32] |= static_cast<u8>((code & 3u) << (2 * (i / 32 % 4)));
      block[i % 32] |= static_cast<u8>((code >> 2) << (i / 32));
    }
    TW_MEMBER static i8 scale(const u8* block, int j) {
      const u32 low = (block[96 + j % 8] >> (4 * (j / 8))) & 15u, high = (block[104 + j % 4] >> (2 * (j / 4))) & 3u;
      return static_cast<i8>(static_cast<i32>(low | (high << 4)) - 32);
    }
    TW_MEMBER static void put_scale(u8* block, int j, i8 scale) {
      const u32 stored = static_cast<u32>(scale + 32);
      block[96 + j % 8] |= static_cast<u8>((stored & 15u) << (4 * (j / 8)));
      block[104 + j % 4] |= static_cast<u8>((stored >> 4) << (2 * (j / 4)));
    }
  };

  template <bool searched>
  TW_MEMBER static void encode_by(const float* x, const float* importance, u8* data) {
    for (int i = 0; i < 108; ++i) data[i] = 0;
    const auto store = [&](u16 d, const i8* scales) {
      for (int j = 0; j < 16; ++j) TileBase::put_scale(data, j, scales[j]);
      write16(data + 108, d);
    };
    const auto put = [&](int i, u32 code) { TileBase::put_code(data, i, code); };
    if constexpr (searched)
      search_signed<4, 32>(x, importance, store, put);
    else
      encode_signed<4, 32>(x, store, put);
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
    const float d = mul_rn(f16_bits_to_f32(read16(data + 108)), static_cast<float>(TileBase::scale(data, i / 16)));
    return mul_rn(d, static_cast<float>(static_cast<i32>(TileBase::code(data, i)) - 4));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(int, kGroup = 16);
  TW_CONSTANTS(bool, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 128 || e == 256; }
  // Lower bits of whole halves of a block; everything else is the block's.
  template <int E>
  struct Unit {
    u32 low[E == 256 ? 16 : 8], high[8], scales[3], d;
    int first;  // 32s before the first element
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / 256 * 110;
    u.first = E == 256 ? 0 : static_cast<int>(k / 32 % 8);
    load_halves<E == 256 ? 64 : 32>(u.low, block + 32 + u.first / 4 * 32);
    load_halves<32>(u.high, block);
    load_halves<12>(u.scales, block + 96);
    u.d = load_global2(block + 108);
  }
  // A half's lower bits, all upper ones, d, the scales.
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return 78;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) {
    return k0 / 256 * 110 + (byte < 32   ? 32 + static_cast<int>(k0 % 256) / 128 * 32 + byte
                             : byte < 64 ? byte - 32
                             : byte < 66 ? 44 + byte
                                         : 30 + byte);
  }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64 k0) {
    static_assert(E == 64, "tiles are unpacked by 64");
    u.first = static_cast<int>((k0 + k) / 32 % 8);
    load_shared_words<32, 2>(u.low, raw);
    load_shared_words<32, 2>(u.high, raw + 32);
    load_shared_words<12, 2>(u.scales, raw + 66);
    u.d = *reinterpret_cast<const u16*>(raw + 64);
  }
  // With a code in the upper three bits of a byte and its top bit flipped, the byte is 32 (code - 4).
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[4], float& scale, float& offset) {
    const int part = u.first + g / 2, j = 2 * part + g % 2;
    const int low = (E == 256 ? g / 8 * 8 : 0) + 4 * (g % 2), high = 4 * (g % 2);
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const u32 pairs = (u.low[low + i] >> (2 * (part % 4))) & 0x03030303u;
      const u32 upper = (u.high[high + i] >> part) & 0x01010101u;
      codes[i] = ((pairs << 5) | (upper << 7)) ^ 0x80808080u;
    }
    const u32 word = j % 8 < 4 ? u.scales[0] : u.scales[1];
    const u32 stored =
        ((word >> (8 * (j % 4) + 4 * (j / 8))) & 15u) | (((u.scales[2] >> (8 * (j % 4) + 2 * (j / 4))) & 3u) << 4);
    scale = f16_bits_to_f32(static_cast<u16>(u.d)) * static_cast<float>(static_cast<i32>(stored) - 32) * 0.03125f;
    offset = 0.0f;
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = SixteensTile<Element, TileBase, 3, 4>;
};

}  // namespace tw::fmt
