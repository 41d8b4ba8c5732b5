// SPDX-License-Identifier: Apache-2.0
// Shared by ggml's formats of 32 elements. A block has a two-byte scale, perhaps a second half, then codes. Blocks are
// only two-byte aligned in memory; a thread takes whole ones.
#pragma once
#include "formats/shared/format.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

// Word i of the codes of block b of a run of blocks in `raw`, and the block's scale. Where a block's bytes are not a
// multiple of four (18, 22 or 34), every other block has its codes across word boundaries.
template <int block_bytes>
TW_FN u32 block_word(const u32* raw, int b, int i) {
  const int at = block_bytes * b + 2 + 4 * i;
  return at % 4 == 0 ? raw[at / 4] : prmt(raw[at / 4], raw[at / 4 + 1], 0x5432u);
}
template <int block_bytes>
TW_FN float block_scale(const u32* raw, int b) {
  const int at = block_bytes * b;
  return f16_bits_to_f32(static_cast<u16>(at % 4 == 0 ? raw[at / 4] : raw[at / 4] >> 16));
}

// The four lowest bits of a word as bytes of 0 or 1, in order.
TW_FN u32 bits_to_bytes(u32 bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }
// The sixteen codes of two bits in a word, lowest first, each less 1, as signed bytes: each code selects one of four.
TW_DEVICE void two_bits_less_one(u32 word, u32* codes) {
  TW_UNROLL for (int i = 0; i < 4; ++i) {
    const u32 byte = (word >> (8 * i)) & 0xffu, nibbles = (byte | (byte << 4)) & 0x0f0fu;
    codes[i] = prmt(0x020100ffu, 0u, (nibbles | (nibbles << 2)) & 0x3333u);
  }
}

// Words to memory that is only two-byte aligned.
TW_FN void write_word(u8* p, u32 w) {
  *reinterpret_cast<u16*>(p) = static_cast<u16>(w);
  *reinterpret_cast<u16*>(p + 2) = static_cast<u16>(w >> 16);
}

// Encoders start from the element of largest magnitude of a block, the first of equals.
TW_FN float extreme_of_32(const float* x) {
  float extreme = 0.0f, largest = 0.0f;
  for (int i = 0; i < 32; ++i) {
    const float a = abs_f(x[i]);
    if (largest < a) largest = a, extreme = x[i];
  }
  return extreme;
}
TW_FN void range_of_32(const float* x, float& low, float& high) {
  low = 3.4028234663852886e38f, high = -low;
  for (int i = 0; i < 32; ++i) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
  }
}
TW_FN float inverse_of(float d) { return d != 0.0f ? div_rn(1.0f, d) : 0.0f; }

// The error under a half d for `codes` codes, half a step being `half` of the block's largest magnitude: d's rounding
// moves the outermost code most.
constexpr Error half_scale_error(double half, int codes) {
  return {0, half + half_rounding(), 0, 0, codes * half_least(), static_cast<float>(codes) * largest_half()};
}
// The error under halves d and m, for codes from 0 to `top` that span the block's range.
constexpr Error half_minimum_error(int top) {
  return {0, half_rounding(), 0.5 / top + half_rounding(), 0, (top + 1) * half_least(), largest_half()};
}

// The block as it is stored, and how threads read it. widest: elements of the largest unit.
template <int block_bytes, int bits, int widest = 256>
struct Blocks32 : StandAlone {
  TW_CONSTANTS(int, kBlock = 32, kBits = bits);
  TW_CONSTANTS(int, kDataBytes = block_bytes, kScaleBytes = 0);
  TW_CONSTANTS(int, kErrorColumns = 32);
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  using Element = void;

  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kCodes = true);
  TW_MEMBER static constexpr bool unit_ok(int e) { return (e == 32 || e == 64 || e == 128 || e == 256) && e <= widest; }
  template <int E>
  struct Unit {
    u32 raw[ceil_div(E / 32 * block_bytes, 4)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E / 32 * block_bytes, run_alignment(E / 32 * block_bytes)>(u.raw, data + k / 32 * block_bytes);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 32 * block_bytes;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 32 * block_bytes + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    load_shared_words<E / 32 * block_bytes, run_alignment(E / 32 * block_bytes)>(u.raw, raw + k / 32 * block_bytes);
  }
};

// Weights: no kernel encodes them on the way, and they have tiles for 16-bit x and for x in blocks of codes.
template <int block_bytes, int bits>
struct Weights32 : Blocks32<block_bytes, bits> {
  TW_CONSTANTS(bool, kCodeLanes = false);
  using TileElement = void;
  template <class X>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(X) == 2 || same<X, Codes>();
  }
};

// Codes of four or five bits: byte j of sixteen, from byte `nibbles` of the block on, has the lower four bits of
// element j low and of element j + 16 high. Before them is a word whose bit j is the fifth bit of element j.
template <int block_bytes, int bits, int nibbles>
struct Nibbles32 : Weights32<block_bytes, bits> {
  TW_MEMBER static u32 stored_code(const u8* block, int i) {
    const u32 byte = block[nibbles + i % 16], low = i < 16 ? byte & 15u : byte >> 4;
    if constexpr (bits == 4) return low;
    return low | (((block[nibbles - 4 + i / 8] >> (i % 8)) & 1u) << 4);
  }
  // code(i): element i's.
  template <class Code>
  TW_MEMBER static void write_codes(u8* block, const Code& code) {
    u32 upper = 0;
    for (int j = 0; j < 16; ++j) {
      const u32 low = code(j), high = code(j + 16);
      block[nibbles + j] = static_cast<u8>((low & 15u) | ((high & 15u) << 4));
      upper |= ((low >> 4) << j) | ((high >> 4) << (j + 16));
    }
    if constexpr (bits == 5) {
      write16(block + nibbles - 4, static_cast<u16>(upper));
      write16(block + nibbles - 2, static_cast<u16>(upper >> 16));
    }
  }

  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) { return stored_code(block, i); }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[nibbles + i % 16] |= static_cast<u8>((code & 15u) << (i < 16 ? 0 : 4));
      if constexpr (bits == 5) block[nibbles - 4 + i / 8] |= static_cast<u8>((code >> 4) << (i % 8));
    }
    TW_MEMBER static u8* item(u8* data, u8*, i64 group) { return data + group * block_bytes; }
  };
};

}  // namespace tw::fmt
