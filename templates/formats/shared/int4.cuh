// SPDX-License-Identifier: Apache-2.0
// Formats of 4-bit codes in groups along a row: stream `data` packs two codes a byte, even element low, so that eight
// nibbles of a little-endian 32-bit word are eight neighbouring elements, the first lowest; stream `scales` has one
// item per group. Int4Groups: offset binary, value = (code - 8) scale. Uint4Groups: value = (code - zero) scale.
#pragma once
#include "formats/shared/format.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

// The eight nibbles of a word as bytes in order: codes 0..15, or 16 (code - 8) as signed bytes.
TW_DEVICE void nibble_bytes(u32 word, u32& first, u32& second) {
  const u32 even = word & 0x0f0f0f0fu, odd = (word >> 4) & 0x0f0f0f0fu;
  first = prmt(even, odd, 0x5140u), second = prmt(even, odd, 0x7362u);
}
TW_DEVICE void nibble_bytes_signed(u32 word, u32& first, u32& second) {
  const u32 flipped = word ^ 0x88888888u;
  const u32 even = (flipped << 4) & 0xf0f0f0f0u, odd = flipped & 0xf0f0f0f0u;
  first = prmt(even, odd, 0x5140u), second = prmt(even, odd, 0x7362u);
}
TW_FN u32 nibble_at(const u8* data, int i) { return i % 2 ? data[i / 2] >> 4 : data[i / 2] & 15u; }

// Members that both have in common. item_bytes: the size of an item of `scales`.
template <int group_elements, int item_bytes>
struct NibbleGroups : StandAlone {
  TW_CONSTANTS(int, kLayout = 1, kBlock = group_elements, kBits = 4);
  TW_CONSTANTS(int, kDataBytes = group_elements / 2, kScaleBytes = item_bytes);
  TW_CONSTANTS(int, kErrorColumns = group_elements);
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = void;
  using TileElement = void;

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  template <int E>
  TW_MEMBER static void write_codes(u8* data, const u32 (&codes)[E]) {
    TW_UNROLL for (int i = 0; i < E; i += 4) * reinterpret_cast<u16*>(data + i / 2) =
        static_cast<u16>(codes[i] | (codes[i + 1] << 4) | (codes[i + 2] << 8) | (codes[i + 3] << 12));
  }

  // Groups of more than 32 are several that share a scale: integer products are taken 32 at a time.
  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kCodes = true);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32 || e == 64 || e == 128 || e == 256; }
  template <int E>
  TW_MEMBER static constexpr int items_in() {
    return E < group_elements ? 1 : E / group_elements;
  }
  template <int E>
  struct Unit {
    u32 raw[E / 8], items[ceil_div(items_in<E>() * item_bytes, 4)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8* scales, i64 k) {
    load_words<E / 2, 16>(u.raw, data + k / 2);
    load_words<items_in<E>() * item_bytes, run_alignment(items_in<E>() * item_bytes)>(
        u.items, scales + k / group_elements * item_bytes);
  }
  // A tile of the mma family is copied with its scales in whole groups: one that is shorter than a group is not to be
  // had, so it asks for more shared memory than there is.
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK % group_elements == 0 ? BK / 2 : 1 << 16;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 2 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8* scales, int k, i64) {
    load_shared_words<E / 2, 16>(u.raw, raw + k / 2);
    load_shared_words<items_in<E>() * item_bytes, run_alignment(items_in<E>() * item_bytes)>(
        u.items, scales + k / group_elements * item_bytes);
  }

  struct TileBase {
    TW_MEMBER static u32 code(const u8* block, int i) { return nibble_at(block, i); }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[i / 2] |= static_cast<u8>(code << (4 * (i % 2)));
    }
    TW_MEMBER static u8* item(u8*, u8* scales, i64 group) { return scales + group * kScaleBytes; }
  };
};

template <int group_elements>
struct Int4Groups : NibbleGroups<group_elements, 2> {
  using Base = NibbleGroups<group_elements, 2>;
  // "amax7": scale = amax / 7, codes 1 to 15, so that no value is clipped; "compressed_tensors": amax / 7.5, codes 0 to
  // 15, as its observers choose (quantization/utils/helpers.py): the largest value becomes 7 steps, the least -8.
  TW_CONSTANTS(int, kEncoders = 2);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "amax7" : "compressed_tensors"; }
  TW_MEMBER static constexpr CodeSteps steps(int i) { return {4, false, i == 0 ? 1 : 0, 15}; }
  TW_MEMBER static constexpr float top(int encoder) { return encoder == 0 ? 7.0f : 7.5f; }
  static constexpr Error error(int i) {
    return {0, 0.5 / top(i) + half_rounding(), 0, 0, top(i) * half_least(), top(i) * largest_half()};
  }

  // Steps are taken of the scale as stored. Where that is 0 or infinite all codes are 8.
  TW_MEMBER static bool usable(float scale) { return scale > 0.0f && scale <= 65504.0f; }
  TW_MEMBER static u32 code(float steps, int encoder) {
    return static_cast<u32>(max2(min2(to_int(rint_even(steps)), 7), encoder == 0 ? -7 : -8) + 8);
  }
  // A group's values, for those who round weights one at a time.
  struct Grid {
    float scale;
    // The item of stream `scales` for weights from low to high, 0 among them.
    TW_MEMBER static u32 item(float low, float high, int encoder) {
      return f32_to_f16_bits(div_rn(max2(high, -low), top(encoder)));
    }
    TW_MEMBER explicit Grid(u32 item) : scale(f16_bits_to_f32(static_cast<u16>(item))) {}
    TW_MEMBER u32 nearest(float v, int encoder) const { return usable(scale) ? code(div_rn(v, scale), encoder) : 8u; }
    TW_MEMBER float value(u32 code) const { return mul_rn(static_cast<float>(static_cast<i32>(code) - 8), scale); }
  };
  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int encoder) {
    float largest = 0.0f;
    for (int i = 0; i < group_elements; ++i) largest = max2(largest, abs_f(x[i]));
    const u32 item = Grid::item(0.0f, largest, encoder);
    write16(scales, static_cast<u16>(item));
    const Grid grid(item);
    for (int i = 0; i < group_elements / 2; ++i)
      data[i] = static_cast<u8>(grid.nearest(x[2 * i], encoder) | (grid.nearest(x[2 * i + 1], encoder) << 4));
  }
  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    return mul_rn(static_cast<float>(static_cast<i32>(nibble_at(data, i)) - 8), f16_bits_to_f32(read16(scales)));
  }

  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float, int encoder) {
    const float largest = largest_of<group_elements / E>(v);
    const u16 stored = f32_to_f16_bits(div_rn(largest, top(encoder)));
    if (lane == 0) *reinterpret_cast<u16*>(scales) = stored;
    const float scale = f16_bits_to_f32(stored);
    const Divider by(scale, largest);  // direct for every usable scale
    u32 codes[E];
    TW_UNROLL for (int i = 0; i < E; ++i) codes[i] = usable(scale) ? code(by.quotient_unsigned(v[i]), encoder) : 8u;
    Base::write_codes(data + E / 2 * lane, codes);
  }

  TW_CONSTANTS(bool, kOffset = false);
  template <int E>
  TW_MEMBER static void group(const typename Base::template Unit<E>& u, int g, u32 (&codes)[8], float& scale,
                              float& offset) {
    TW_UNROLL for (int i = 0; i < 4; ++i) nibble_bytes_signed(u.raw[4 * g + i], codes[2 * i], codes[2 * i + 1]);
    const int at = 32 * g / group_elements;
    scale = f16_bits_to_f32(static_cast<u16>(u.items[at / 2] >> (16 * (at % 2)))) * 0.0625f;
    offset = 0.0f;
  }

  using typename Base::TileBase;
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2 || (group_elements == 128 && (same<Element, tw::i8>() || same<Element, tw::e4m3>()));
  }
  template <class Element>
  using Tile = select<sizeof(Element) == 1, SignedNibblesAfterMma<Element, TileBase>,
                      ScaledTile<Element, TileBase, 4, 8, group_elements>>;
};

template <int group_elements>
struct Uint4Groups : NibbleGroups<group_elements, 4> {
  using Base = NibbleGroups<group_elements, 4>;
  TW_CONSTANTS(int, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "minmax"; }
  // Half a step; the scale's rounding moves the outermost of the fifteen steps, on either side of the zero point. A
  // range is twice the largest magnitude at most.
  static constexpr Error error(int) {
    return {0, 0, 0.5 / 15 + 2 * half_rounding(), 0, 16 * half_least(), 7.5f * largest_half()};
  }

  struct Rule {  // of one group, as stored
    u16 scale, zero;
  };
  TW_MEMBER static bool usable(float scale) { return scale <= 65504.0f; }
  TW_MEMBER static u32 code(float steps) { return static_cast<u32>(max2(min2(to_int(rint_even(steps)), 15), 0)); }
  // 2^-24: the least scale that a half holds.
  TW_MEMBER static Rule rule(float low, float high) {
    Rule r;
    r.scale = f32_to_f16_bits(max2(div_rn(sub_rn(high, low), 15.0f), 5.9604644775390625e-8f));
    r.zero = f32_to_f16_bits(static_cast<float>(code(div_rn(-low, f16_bits_to_f32(r.scale)))));
    return r;
  }
  // A group's values, for those who round weights one at a time.
  struct Grid {
    float scale, zero;
    // The item of stream `scales` for weights from low to high, 0 among them.
    TW_MEMBER static u32 item(float low, float high, int) {
      const Rule r = rule(low, high);
      return r.scale | (static_cast<u32>(r.zero) << 16);
    }
    TW_MEMBER explicit Grid(u32 item)
        : scale(f16_bits_to_f32(static_cast<u16>(item))), zero(f16_bits_to_f32(static_cast<u16>(item >> 16))) {}
    TW_MEMBER u32 nearest(float v, int) const {
      return usable(scale) ? code(div_rn(add_rn(v, mul_rn(zero, scale)), scale)) : 0u;
    }
    TW_MEMBER float value(u32 code) const { return mul_rn(sub_rn(static_cast<float>(code), zero), scale); }
  };
  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int encoder) {
    float low = 0.0f, high = 0.0f;
    for (int i = 0; i < group_elements; ++i) {
      if (x[i] < low) low = x[i];
      if (x[i] > high) high = x[i];
    }
    const u32 item = Grid::item(low, high, encoder);
    write16(scales, static_cast<u16>(item));
    write16(scales + 2, static_cast<u16>(item >> 16));
    const Grid grid(item);
    for (int i = 0; i < group_elements / 2; ++i)
      data[i] = static_cast<u8>(grid.nearest(x[2 * i], encoder) | (grid.nearest(x[2 * i + 1], encoder) << 4));
  }
  // (code - zero) scale, for a zero point that is not an integer of four bits too as the kernels form it.
  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    const float scale = f16_bits_to_f32(read16(scales)), zero = f16_bits_to_f32(read16(scales + 2));
    return sub_rn(mul_rn(scale, static_cast<float>(nibble_at(data, i))), mul_rn(scale, zero));
  }

  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float, int) {
    float low = 0.0f, high = 0.0f;
    TW_UNROLL for (int i = 0; i < E; ++i) low = min_number(low, v[i]), high = max_number(high, v[i]);
    TW_UNROLL for (int d = group_elements / E / 2; d > 0; d /= 2) {
      low = min_number(low, shuffle_xor(low, d));
      high = max_number(high, shuffle_xor(high, d));
    }
    const Rule r = rule(low, high);
    if (lane == 0) *reinterpret_cast<u32*>(scales) = r.scale | (static_cast<u32>(r.zero) << 16);
    const float scale = f16_bits_to_f32(r.scale), shift = mul_rn(f16_bits_to_f32(r.zero), scale);
    const Divider by(scale, high - low);  // direct for every usable scale
    u32 codes[E];
    TW_UNROLL for (int i = 0; i < E; ++i) codes[i] =
        usable(scale) ? code(by.quotient_unsigned(add_rn(v[i], shift))) : 0u;
    Base::write_codes(data + E / 2 * lane, codes);
  }

  TW_CONSTANTS(bool, kOffset = true);
  template <int E>
  TW_MEMBER static void group(const typename Base::template Unit<E>& u, int g, u32 (&codes)[8], float& scale,
                              float& offset) {
    TW_UNROLL for (int i = 0; i < 4; ++i) nibble_bytes(u.raw[4 * g + i], codes[2 * i], codes[2 * i + 1]);
    const u32 rule = u.items[32 * g / group_elements];
    scale = low_half<tw::f16>(rule);
    offset = scale * high_half<tw::f16>(rule);
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = AffineTile<Element, typename Base::TileBase, 4, group_elements, ZeroPoint>;
};

}  // namespace tw::fmt
