// SPDX-License-Identifier: Apache-2.0
// Symmetric 3-bit codes in groups of 64 along a row, their bits as GPTQ (AutoGPTQ qlinear_cuda_old.py, pack()) has them
// along a column: code i of a group is bits 3 i to 3 i + 2 of its 24 bytes, lowest first; value = (code - 4) scale, one
// half-precision scale per group.
// Encoder "amax3": scale = half(amax / 3); code = 4 + nearest even of x / scale, clamped to 1..7; scale 0 and codes 4
// for zeros.
#pragma once
#include "formats/shared/format.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

struct int3_g64 : StandAlone {
  static constexpr const char* title() { return "3-bit codes minus 4, one half scale per 64 (GPTQ)"; }
  static constexpr const char* source() { return "GPTQ (AutoGPTQ qlinear_cuda_old.py); amax3: this library"; }
  TW_CONSTANTS(int, kLayout = 1, kBlock = 64, kBits = 3);
  TW_CONSTANTS(int, kDataBytes = 24, kScaleBytes = 2);
  TW_CONSTANTS(int, kEncoders = 1, kErrorColumns = 64);
  static constexpr const char* encoder_name(int) { return "amax3"; }
  static constexpr Error error(int) {
    return {0, 0.5 / 3 + half_rounding(), 0, 0, 3 * half_least(), 3 * largest_half()};
  }
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = void;
  using TileElement = void;

  // Steps are taken of the scale as stored. Where that is 0 or infinite all codes are 4.
  TW_MEMBER static bool usable(float scale) { return scale > 0.0f && scale <= 65504.0f; }
  TW_MEMBER static u32 code(float steps) { return static_cast<u32>(max2(min2(to_int(rint_even(steps)), 3), -3) + 4); }
  // A group's values, for those who round weights one at a time.
  struct Grid {
    float scale;
    // The item of stream `scales` for weights from low to high, 0 among them.
    TW_MEMBER static u32 item(float low, float high, int) { return f32_to_f16_bits(div_rn(max2(high, -low), 3.0f)); }
    TW_MEMBER explicit Grid(u32 item) : scale(f16_bits_to_f32(static_cast<u16>(item))) {}
    TW_MEMBER u32 nearest(float v, int) const { return usable(scale) ? int3_g64::code(div_rn(v, scale)) : 4u; }
    TW_MEMBER float value(u32 code) const { return mul_rn(static_cast<float>(static_cast<i32>(code) - 4), scale); }
  };
  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) {
      const int byte = 3 * i / 8, bit = 3 * i % 8;
      return ((bit > 5 ? read16(block + byte) : block[byte]) >> bit) & 7u;
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      const int byte = 3 * i / 8, bit = 3 * i % 8;
      block[byte] |= static_cast<u8>(code << bit);
      if (bit > 5) block[byte + 1] |= static_cast<u8>(code >> (8 - bit));
    }
    TW_MEMBER static u8* item(u8*, u8* scales, i64 group) { return scales + group * kScaleBytes; }
  };
  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int encoder) {
    float largest = 0.0f;
    for (int i = 0; i < kBlock; ++i) largest = max2(largest, abs_f(x[i]));
    const u32 item = Grid::item(0.0f, largest, encoder);
    write16(scales, static_cast<u16>(item));
    const Grid grid(item);
    for (int i = 0; i < kDataBytes; ++i) data[i] = 0;
    for (int i = 0; i < kBlock; ++i) TileBase::put_code(data, i, grid.nearest(x[i], encoder));
  }
  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    return mul_rn(static_cast<float>(static_cast<i32>(TileBase::code(data, i)) - 4), f16_bits_to_f32(read16(scales)));
  }

  // Eight codes are three bytes.
  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 8 || e == 16 || e == 32; }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float, int) {
    const float largest = largest_of<kBlock / E>(v);
    const u16 stored = f32_to_f16_bits(div_rn(largest, 3.0f));
    if (lane == 0) *reinterpret_cast<u16*>(scales) = stored;
    const float scale = f16_bits_to_f32(stored);
    const Divider by(scale, largest);  // direct for every usable scale
    TW_UNROLL for (int i = 0; i < E; i += 8) {
      u32 eight = 0;
      TW_UNROLL for (int j = 0; j < 8; ++j) eight |= (usable(scale) ? code(by.quotient_unsigned(v[i + j])) : 4u)
                                                     << (3 * j);
      u8* to = data + (E * lane + i) / 8 * 3;
      to[0] = static_cast<u8>(eight), to[1] = static_cast<u8>(eight >> 8), to[2] = static_cast<u8>(eight >> 16);
    }
  }

  // A group of the kernels is half of one here: 32 codes in three words.
  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kCodes = true, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[E / 32 * 3], items[ceil_div(E / 64, 2)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8* scales, i64 k) {
    load_words<E / 8 * 3, 8>(u.raw, data + k / 8 * 3);
    load_words<E / 32, run_alignment(E / 32)>(u.items, scales + k / 32);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 8 * 3;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 8 * 3 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8* scales, int k, i64) {
    load_shared_words<E / 8 * 3, 8>(u.raw, raw + k / 8 * 3);
    load_shared_words<E / 32, run_alignment(E / 32)>(u.items, scales + k / 32);
  }
  // Four codes in twelve bits as the upper three of each byte; with its top bit flipped the byte is 32 (code - 4).
  TW_MEMBER static u32 four(u32 bits) {
    return (((bits << 5) & 0xe0u) | ((bits << 10) & 0xe000u) | ((bits << 15) & 0xe00000u) |
            (bits << 20 & 0xe0000000u)) ^
           0x80808080u;
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const u32 a = u.raw[3 * g], b = u.raw[3 * g + 1], c = u.raw[3 * g + 2];
    const u32 bits[8] = {a, a >> 12, (a >> 24) | (b << 8), b >> 4, b >> 16, (b >> 28) | (c << 4), c >> 8, c >> 20};
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] = four(bits[i]);
    scale = f16_bits_to_f32(static_cast<u16>(u.items[g / 4] >> (16 * (g / 2 % 2)))) * 0.03125f;
    offset = 0.0f;
  }

  template <class X>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(X) == 2;
  }
  template <class X>
  using Tile = ScaledTile<X, TileBase, 3, 4, kBlock>;
};

}  // namespace tw::fmt
