// SPDX-License-Identifier: Apache-2.0
// Shared by ggml's formats whose blocks are a half d and then all codes in order, the first in the lowest bits of its
// byte. F: derives from this, and has
//   step(code)                   what a code counts of d: value = d step
//   bytes(word, codes)           the steps of a word's codes as signed bytes
#pragma once
#include "formats/shared/blocks32.cuh"
#include "formats/shared/k_quants.cuh"

namespace tw::fmt {

// columns: of a block. bits: of a stored code.
template <class F, int columns, int bits>
struct OrderedBlocks : StandAlone {
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 1, kBlock = columns, kBits = 2);  // as TileBase has codes
  TW_CONSTANTS(int, kDataBytes = 2 + columns * bits / 8, kScaleBytes = 0, kErrorColumns = columns);
  TW_CONSTANTS(bool, kKeepsNan = false);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = void;
  using TileElement = void;

  TW_MEMBER static u32 stored(const u8* block, int i) {
    return (block[2 + i * bits / 8] >> (i * bits % 8)) & ((1u << bits) - 1);
  }
  TW_MEMBER static void put_stored(u8* block, int i, u32 code) {
    block[2 + i * bits / 8] |= static_cast<u8>(code << (i * bits % 8));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(static_cast<float>(F::step(stored(data, i))), f16_bits_to_f32(read16(data)));
  }
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kCodes = true, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 128 || e == 256; }
  // Blocks as stored; of less than one d and the unit's codes.
  TW_MEMBER static constexpr int unit_bytes(int e) { return e < columns ? 2 + e * bits / 8 : e / columns * kDataBytes; }
  template <int E>
  struct Unit {
    u32 raw[ceil_div(unit_bytes(E), 4)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / columns * kDataBytes;
    if constexpr (E >= columns) {
      load_words<unit_bytes(E), run_alignment(unit_bytes(E))>(u.raw, block);
    } else {
      static_assert(E * bits == 64, "two words of codes");
      u32 codes[2];
      load_halves<8>(codes, block + 2 + k % columns * bits / 8);
      u.raw[0] = load_global2(block) | codes[0] << 16;
      u.raw[1] = prmt(codes[0], codes[1], 0x5432u), u.raw[2] = codes[1] >> 16;
    }
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return unit_bytes(BK);
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) {
    return k0 / columns * kDataBytes + byte + (byte < 2 ? 0 : k0 % columns * bits / 8);
  }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    static_assert(E == 64, "tiles are unpacked by 64");
    const u8* block = raw + k / columns * kDataBytes;
    if constexpr (E >= columns) {
      load_shared_words<unit_bytes(E), 2>(u.raw, block);
    } else {
      u32 d[1], codes[2];
      load_shared_words<2, 2>(d, block);
      load_shared_words<8, 2>(codes, block + 2 + k % columns * bits / 8);
      u.raw[0] = (d[0] & 0xffffu) | codes[0] << 16;
      u.raw[1] = prmt(codes[0], codes[1], 0x5432u), u.raw[2] = codes[1] >> 16;
    }
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    constexpr int kGroups = columns / 32;  // of a block, `bits` words each
    TW_UNROLL for (int i = 0; i < bits; ++i)
        F::bytes(block_word<kDataBytes>(u.raw, g / kGroups, g % kGroups * bits + i), codes + 8 / bits * i);
    scale = block_scale<kDataBytes>(u.raw, g / kGroups);
    offset = 0.0f;
  }

  // Tiles and panels have steps, from -1 on, as codes of two bits.
  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) { return static_cast<u32>(F::step(stored(block, i)) + 1); }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) { put_stored(block, i, code >> (2 - bits)); }
    TW_MEMBER static u8* item(u8* data, u8*, i64 group) { return data + group * kDataBytes; }
  };
  template <class X>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(X) == 2;
  }
  template <class X>
  using Tile = ScaledTile<X, TileBase, 2, 1, columns>;
};

}  // namespace tw::fmt
