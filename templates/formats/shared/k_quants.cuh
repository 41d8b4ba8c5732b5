// SPDX-License-Identifier: Apache-2.0
// Shared by ggml's formats of 256 elements ("K-quants"): their plain encoders, reads of blocks that are only two-byte
// aligned, the header and fast path of Q4_K and Q5_K, and tiles.
//
// The plain encoders do without ggml's search for the best scale of a sub-block. Signed: a sub-block's scale maps its
// extreme (the element of largest magnitude, the first of equals) to the lowest code. With minima: its scale and
// minimum span its range, 0 included from above. Then, as in ggml, those are rounded to integers under one
// half-precision d (and dmin), and the elements' codes are taken against what is stored.
#pragma once
#include "formats/shared/format.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

TW_FN i32 clamped(float v, i32 low, i32 high) { return max2(low, min2(high, to_int(rint_even(v)))); }

// Members that all of them have in common.
struct Blocks256 : StandAlone {
  TW_CONSTANTS(int, kBlock = 256, kScaleBytes = 0);
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = void;
  using TileElement = void;
  TW_CONSTANTS(bool, kCodes = true);
};

// The errors of the two plain encoders. Half a step of a sub-block's own line, plus what its integer scale is off, by
// half a step of the block's largest scale (a whole one where the scale of the other sign is clamped): the elements at
// the end of the codes miss that many codes' worth. A range is twice the largest magnitude at most.
constexpr Error minima_error(int top, int top_scale) {
  return {0,
          0,
          0.5 / top,
          1.5 / top_scale + 3 * half_rounding(),
          (top + 1) * top_scale * half_least(),
          static_cast<float>(top_scale) * largest_half()};
}
constexpr Error signed_error(int half, int top_scale) {
  return {0,
          1.0 / half + half_rounding(),
          0,
          1.0 / top_scale,
          half * top_scale * half_least(),
          static_cast<float>(half * top_scale) * largest_half()};
}

// sub-blocks of `size`: code(i, 0 .. top) for every element, after store(d, dmin, scales, minima).
template <int size, i32 top, i32 top_scale, class Store, class Code>
TW_FN void encode_with_minima(const float* x, const Store& store, const Code& code) {
  constexpr int kSubs = 256 / size;
  float scale[kSubs], minimum[kSubs], most_scale = 0.0f, most_minimum = 0.0f;
  for (int j = 0; j < kSubs; ++j) {
    float low = 0.0f;
    for (int i = 0; i < size; ++i)
      if (x[size * j + i] < low) low = x[size * j + i];
    float high = low;
    for (int i = 0; i < size; ++i)
      if (x[size * j + i] > high) high = x[size * j + i];
    scale[j] = div_rn(sub_rn(high, low), static_cast<float>(top)), minimum[j] = -low;
    most_scale = max2(most_scale, scale[j]), most_minimum = max2(most_minimum, minimum[j]);
  }
  const u16 d = f32_to_f16_bits(div_rn(most_scale, static_cast<float>(top_scale)));
  const u16 dmin = f32_to_f16_bits(div_rn(most_minimum, static_cast<float>(top_scale)));
  u8 scales[kSubs], minima[kSubs];
  for (int j = 0; j < kSubs; ++j) {
    const float s = most_scale > 0.0f ? div_rn(scale[j], most_scale) : 0.0f;
    const float m = most_minimum > 0.0f ? div_rn(minimum[j], most_minimum) : 0.0f;
    scales[j] = static_cast<u8>(clamped(mul_rn(static_cast<float>(top_scale), s), 0, top_scale));
    minima[j] = static_cast<u8>(clamped(mul_rn(static_cast<float>(top_scale), m), 0, top_scale));
  }
  store(d, dmin, scales, minima);
  for (int j = 0; j < kSubs; ++j) {
    const float step = mul_rn(f16_bits_to_f32(d), static_cast<float>(scales[j]));
    const float low = mul_rn(f16_bits_to_f32(dmin), static_cast<float>(minima[j]));
    for (int i = size * j; i < size * (j + 1); ++i)
      code(i, static_cast<u32>(step > 0.0f ? clamped(div_rn(add_rn(x[i], low), step), 0, top) : 0));
  }
}

// Sub-blocks of 16: code(i, 0 .. 2 half - 1) for every element, after store(d, scales). The scale of largest magnitude
// becomes -top_scale, and codes stand for themselves minus `half`.
template <i32 half, i32 top_scale, class Store, class Code>
TW_FN void encode_signed(const float* x, const Store& store, const Code& code) {
  float scale[16], most = 0.0f;
  for (int j = 0; j < 16; ++j) {
    float extreme = 0.0f;
    for (int i = 16 * j; i < 16 * (j + 1); ++i)
      if (abs_f(extreme) < abs_f(x[i])) extreme = x[i];
    scale[j] = div_rn(extreme, static_cast<float>(-half));
    if (abs_f(most) < abs_f(scale[j])) most = scale[j];
  }
  const u16 d = f32_to_f16_bits(most != 0.0f ? div_rn(most, static_cast<float>(-top_scale)) : 0.0f);
  i8 scales[16];
  for (int j = 0; j < 16; ++j)
    scales[j] = static_cast<i8>(most != 0.0f ? clamped(mul_rn(static_cast<float>(-top_scale), div_rn(scale[j], most)),
                                                       -top_scale, top_scale - 1)
                                             : 0);
  store(d, scales);
  for (int j = 0; j < 16; ++j) {
    const float step = mul_rn(f16_bits_to_f32(d), static_cast<float>(scales[j]));
    for (int i = 16 * j; i < 16 * (j + 1); ++i)
      code(i, static_cast<u32>(half + (step != 0.0f ? clamped(div_rn(x[i], step), -half, half - 1) : 0)));
  }
}

// words <- `bytes` (a multiple of two) from an address that is only two-byte aligned, in reads of four. Nothing before
// the word of the first byte or after the last byte is touched.
template <int bytes>
TW_DEVICE void load_halves(u32* words, const u8* p) {
  constexpr int kWords = bytes / 4;
  const bool odd = (reinterpret_cast<u64>(p) & 2u) != 0;
  const u8* from = odd ? p - 2 : p;
  u32 raw[kWords + 1];
  TW_UNROLL for (int i = 0; i < kWords; ++i) raw[i] = load_global4(from + 4 * i);
  raw[kWords] = 0;
  if (odd || bytes % 4 == 2) raw[kWords] = load_global2(from + 4 * kWords);
  if (odd && bytes % 4 == 2) raw[kWords] |= static_cast<u32>(load_global2(from + 4 * kWords + 2)) << 16;
  const u32 selector = odd ? 0x5432u : 0x3210u;
  TW_UNROLL for (int i = 0; i < kWords; ++i) words[i] = prmt(raw[i], raw[i + 1], selector);
  if constexpr (bytes % 4 == 2) words[kWords] = prmt(raw[kWords], 0u, selector);
}

// Q4_K and Q5_K: half-precision d and dmin, twelve bytes of 6-bit pairs of scale and minimum for eight sub-blocks of
// 32, of Q5_K 32 bytes of fifth bits (bit j of byte l is that of element 32 j + l), then nibbles: byte 32 p + l holds
// element 64 p + l low and 64 p + 32 + l high. value = d scale code - dmin minimum.
template <int bits>
TW_FN constexpr int minima_nibbles() {
  return bits == 4 ? 16 : 48;
}  // where nibbles begin in a block

TW_FN u32 minima_scale(const u8* block, int j) {
  const u8* s = block + 4;
  return j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | ((s[j - 4] >> 6) << 4);
}
TW_FN u32 minima_minimum(const u8* block, int j) {
  const u8* s = block + 4;
  return j < 4 ? s[j + 4] & 63u : (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
}
template <int bits>
TW_FN u32 minima_code(const u8* block, int i) {
  const u32 low = (block[minima_nibbles<bits>() + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15u;
  return bits == 4 ? low : low | (((block[16 + i % 32] >> (i / 32)) & 1u) << 4);
}

// Both as they are stored, and how threads read them.
template <int bits>
struct MinimaBlocks : Blocks256 {
  TW_CONSTANTS(int, kNibbles = minima_nibbles<bits>());
  TW_CONSTANTS(int, kBits = bits, kDataBytes = kNibbles + 128);
  TW_CONSTANTS(int, kErrorColumns = 32);

  TW_MEMBER static void put_header(u8* data, u16 d, u16 dmin, const u8* scales, const u8* minima) {
    write16(data, d);
    write16(data + 2, dmin);
    u8* s = data + 4;
    for (int j = 0; j < 4; ++j) {
      s[j] = static_cast<u8>(scales[j] | ((scales[j + 4] >> 4) << 6));
      s[j + 4] = static_cast<u8>(minima[j] | ((minima[j + 4] >> 4) << 6));
      s[j + 8] = static_cast<u8>((scales[j + 4] & 15u) | ((minima[j + 4] & 15u) << 4));
    }
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    const float d = mul_rn(f16_bits_to_f32(read16(data)), static_cast<float>(minima_scale(data, i / 32)));
    const float m = mul_rn(f16_bits_to_f32(read16(data + 2)), static_cast<float>(minima_minimum(data, i / 32)));
    return sub_rn(mul_rn(d, static_cast<float>(minima_code<bits>(data, i))), m);
  }

  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kOffset = true);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 256; }
  // The header, all fifth bits, and the nibbles of 64 (one pair of sub-blocks) or 256 elements.
  template <int E>
  struct Unit {
    u32 header[4], upper[bits == 5 ? 8 : 1], raw[E / 8];
    int first;  // sub-block of the first element
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / 256 * kDataBytes;
    u.first = E == 256 ? 0 : static_cast<int>(k / 32 % 8);
    load_words<16, 16>(u.header, block);
    if constexpr (bits == 5) load_words<32, 16>(u.upper, block + 16);
    load_words<E / 2, 16>(u.raw, block + kNibbles + u.first * 16);
  }
  // The header and fifth bits, then the nibbles.
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return kNibbles + BK / 2;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) {
    return k0 / 256 * kDataBytes + (byte < kNibbles ? byte : static_cast<int>(k0 % 256) / 2 + byte);
  }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64 k0) {
    u.first = static_cast<int>((k0 + k) / 32 % 8);
    load_shared_words<16, 16>(u.header, raw);
    if constexpr (bits == 5) load_shared_words<32, 16>(u.upper, raw + 16);
    load_shared_words<E / 2, 16>(u.raw, raw + kNibbles + k / 2);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const int j = u.first + g;
    TW_UNROLL for (int i = 0; i < 8; ++i) {
      codes[i] = (u.raw[8 * (g / 2) + i] >> (4 * (g % 2))) & 0x0f0f0f0fu;
      if constexpr (bits == 5) codes[i] |= ((u.upper[i] >> j) & 0x01010101u) << 4;
    }
    // Eight 6-bit pairs in three words: all scales, then all minima, four to a word.
    const u32 a = u.header[1], b = u.header[2], c = u.header[3];
    const u32 scales = j < 4 ? a & 0x3f3f3f3fu : (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
    const u32 minima = j < 4 ? b & 0x3f3f3f3fu : ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
    const int shift = 8 * (j % 4);
    scale = low_half<tw::f16>(u.header[0]) * static_cast<float>((scales >> shift) & 255u);
    offset = high_half<tw::f16>(u.header[0]) * static_cast<float>((minima >> shift) & 255u);
  }

  template <class X>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(X) == 2 || same<X, Codes>();
  }
};

// A row's line for f16: `integers`, scale and minimum as halves, times d and dmin, halves too. Both are rounded.
TW_DEVICE Line<tw::f16> line_of(u32 integers, u32 d) {
  const u32 both = mul_f16x2(integers, d);
  return {spread(both, 0), neg_f16x2(spread(both, 1))};
}
template <class Element>
TW_FN constexpr double line_rounding() {
  return same<Element, tw::f16>() ? 1.46484375e-3 : bf16_line_rounding();
}

// Bytes of a word, less an offset, times a half, exactly: a byte in the mantissa of 2^15 is added to it.
struct ByteTimes {
  float d, less;
  TW_MEMBER static ByteTimes of(float d, int offset = 0) { return {d, static_cast<float>(-32768 - offset) * d}; }
  TW_MEMBER float at(u32 word, u32 i) const {
    return fma_rn(bits_as<float>(prmt(word, 0x47000000u, 0x7404u + 16u * i)), d, less);
  }
};

// A row's lines for bf16: bytes that are scales, and others that are minima, of d and dmin.
template <int bits>
struct MinimaLines {
  ByteTimes step, start;
  TW_MEMBER MinimaLines(float d, float dmin, int row)
      : step(ByteTimes::of(d * Line<tw::bf16>::step_factor<bits>(row))),
        start(ByteTimes::of(-dmin * Line<tw::bf16>::start_factor())) {}
  TW_MEMBER Line<tw::bf16> at(u32 scales, u32 i, u32 minima, u32 j) const {
    return Line<tw::bf16>::of(step.at(scales, i), start.at(minima, j));
  }
};

// Tiles of Q4_K and Q5_K. A row's chunk of scales is, for each 64 columns, scale, minimum, scale, minimum as bytes, and
// then d and dmin.
template <int bits>
struct MinimaBase {
  TW_CONSTANTS(int, kScaleK = 256, kScaleBytes = 20, kGroups = 2);
  TW_CONSTANTS(bool, kOffset = true);
  TW_CONSTANTS(int, kNibbles = minima_nibbles<bits>(), kBytes = kNibbles + 128);
  TW_MEMBER static u32 code(const u8* block, int i) { return minima_code<bits>(block, i); }
  TW_MEMBER static void put_code(u8* block, int i, u32 code) {
    block[kNibbles + 32 * (i / 64) + i % 32] |= static_cast<u8>((code & 15u) << (4 * (i / 32 % 2)));
    if constexpr (bits == 5) block[16 + i % 32] |= static_cast<u8>((code >> 4) << (i / 32));
  }
  TW_MEMBER static void put_scales(u8* out, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / 256 * kBytes;
    for (int j = 0; j < 8; ++j) {
      out[2 * j] = static_cast<u8>(minima_scale(block, j));
      out[2 * j + 1] = static_cast<u8>(minima_minimum(block, j));
    }
    for (int i = 0; i < 4; ++i) out[16 + i] = block[i];
  }
  TW_MEMBER static void take_scales(const u8* in, u8* data, u8*, i64 k) {
    u8* block = data + k / 256 * kBytes;
    for (int i = 0; i < 4; ++i) block[i] = in[16 + i];
    for (int j = 0; j < 4; ++j) {
      block[4 + j] = static_cast<u8>(in[2 * j] | ((in[2 * j + 8] >> 4) << 6));
      block[8 + j] = static_cast<u8>(in[2 * j + 1] | ((in[2 * j + 9] >> 4) << 6));
      block[12 + j] = static_cast<u8>((in[2 * j + 8] & 15u) | ((in[2 * j + 9] & 15u) << 4));
    }
  }
};
template <class Element, int bits>
struct MinimaAfterMma : MinimaBase<bits>, Integers<Element, bits, 0> {
  TW_MEMBER static constexpr double rounding() { return after_mma_rounding(); }
  struct Scales {
    float d[2][2], m[2][2];
  };  // [group][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int part) {
    Scales s;
    TW_UNROLL for (int r = 0; r < 2; ++r) {
      const u32* row = reinterpret_cast<const u32*>(chunk + 40 * pair + 20 * r);
      const ByteTimes d = ByteTimes::of(low_half<tw::f16>(row[4])), m = ByteTimes::of(-high_half<tw::f16>(row[4]));
      TW_UNROLL for (u32 g = 0; g < 2; ++g) s.d[g][r] = d.at(row[part], 2 * g), s.m[g][r] = m.at(row[part], 2 * g + 1);
    }
    return s;
  }
  TW_MEMBER static float row_scale(const Scales& s, int row, int step) { return s.d[step / 2][row]; }
  TW_MEMBER static float row_minimum(const Scales& s, int row, int step) { return s.m[step / 2][row]; }
};
template <class Element, int bits>
struct MinimaTile : MinimaBase<bits> {
  using AfterMma = AfterMmaForBf16<Element, MinimaAfterMma<tw::bf16, bits>, MinimaTile>;
  TW_CONSTANTS(int, kBits = bits);
  TW_MEMBER static constexpr float factor() { return Line<Element>::factor(); }
  TW_CONSTANTS(bool, kScaleAfterMma = false);
  TW_MEMBER static constexpr double rounding() { return line_rounding<Element>(); }
  struct Scales {
    Line<Element> of[2][2];
  };  // [group][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int part) {
    Scales s;
    TW_UNROLL for (int r = 0; r < 2; ++r) {
      const u32* row = reinterpret_cast<const u32*>(chunk + 40 * pair + 20 * r);
      if constexpr (same<Element, tw::f16>()) {
        TW_UNROLL for (int g = 0; g < 2; ++g) s.of[g][r] =
            line_of(sub_f16x2(prmt(row[part], 0x64646464u, g ? 0x4342u : 0x4140u), 0x64006400u), row[4]);
      } else {
        const MinimaLines<bits> lines(low_half<tw::f16>(row[4]), high_half<tw::f16>(row[4]), r);
        TW_UNROLL for (u32 g = 0; g < 2; ++g) s.of[g][r] = lines.at(row[part], 2 * g, row[part], 2 * g + 1);
      }
    }
    return s;
  }
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
    Line<Element>::template values<bits>(w, step, scales.of[step / 2], a);
  }
};

template <int bits>
struct MinimaTile<Codes, bits> : CodesTile<MinimaAfterMma<tw::f16, bits>, bits, 0> {};

// Blocks of `bytes`, whose half d is at byte `at`.
template <int bytes, int at>
struct HalfAt {
  TW_CONSTANTS(int, kBytes = bytes);
  TW_MEMBER static u16 half(const u8* block) { return read16(block + at); }
  TW_MEMBER static void put_half(u8* block, u16 bits) { write16(block + at, bits); }
};

// Tiles of Q3_K and Q6_K: value = d scale (code - offset), sixteen scales that fit signed bytes and a half d. A row's
// chunk is those, and two bytes of padding. Base: code(), put_code(), scale(block, j), put_scale(block, j, scale), and
// as HalfAt.
template <class Base>
struct SixteensBase : Base {
  TW_CONSTANTS(int, kScaleK = 256, kScaleBytes = 20, kGroups = 4);
  TW_CONSTANTS(bool, kOffset = false);
  TW_MEMBER static void put_scales(u8* out, const u8* data, const u8*, i64 k) {
    const u8* block = data + k / 256 * Base::kBytes;
    for (int j = 0; j < 16; ++j) out[j] = static_cast<u8>(Base::scale(block, j));
    write16(out + 16, Base::half(block));
    out[18] = out[19] = 0;
  }
  TW_MEMBER static void take_scales(const u8* in, u8* data, u8*, i64 k) {
    u8* block = data + k / 256 * Base::kBytes;
    for (int j = 0; j < 16; ++j) Base::put_scale(block, j, static_cast<i8>(in[j]));
    Base::put_half(block, read16(in + 16));
  }
};
template <class Base, int bits, int offset>
struct SixteensAfterMma : SixteensBase<Base>, Integers<tw::bf16, bits, offset> {
  struct Scales {
    float d[4][2];
  };  // [group][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int part) {
    Scales s;
    TW_UNROLL for (int r = 0; r < 2; ++r) {
      const u32* row = reinterpret_cast<const u32*>(chunk + 40 * pair + 20 * r);
      const ByteTimes d = ByteTimes::of(low_half<tw::f16>(row[4]), 128);
      TW_UNROLL for (u32 g = 0; g < 4; ++g) s.d[g][r] = d.at(row[part] ^ 0x80808080u, g);
    }
    return s;
  }
  TW_MEMBER static float row_scale(const Scales& s, int row, int step) { return s.d[step][row]; }
};
// With the scale applied to codes less their offset.
template <class Element, class Base, int bits, int offset>
struct SixteensScaled : SixteensBase<Base> {
  using AfterMma = AfterMmaForBf16<Element, SixteensAfterMma<Base, bits, offset>, SixteensScaled>;
  TW_CONSTANTS(int, kBits = bits);
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  TW_CONSTANTS(bool, kScaleAfterMma = false);
  // For f16 the scale is rounded, and then the value; for bf16 the value alone.
  TW_MEMBER static constexpr double rounding() {
    return same<Element, tw::f16>() ? 9.765625e-4 : rounded_once<Element>();
  }
  struct Scales {
    PairScale<Element> d[4][2];
  };  // [group][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int part) {
    Scales s;
    TW_UNROLL for (int r = 0; r < 2; ++r) {
      const u32* row = reinterpret_cast<const u32*>(chunk + 40 * pair + 20 * r);
      const u32 bytes = row[part] ^ 0x80808080u, d = spread(row[4], 0);
      TW_UNROLL for (int g = 0; g < 4; g += 2) {
        const u32 integers = sub_f16x2(prmt(bytes, 0x64646464u, g ? 0x4342u : 0x4140u), 0x64806480u);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          if constexpr (same<Element, tw::f16>())
            s.d[g + h][r] = PairScale<tw::f16>::of(mul_f16x2(integers, d), h);
          else
            s.d[g + h][r] = PairScale<tw::bf16>::of((h ? high_half<tw::f16>(integers) : low_half<tw::f16>(integers)) *
                                                    low_half<tw::f16>(d));
        }
      }
    }
    return s;
  }
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
    u32 v[4];
    TileCodes<Element, bits>::template pairs<offset>(w, step, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = scales.d[step][r % 2].times(v[r]);
  }
};

// For bf16 as a line through the codes as they are.
template <class Base, int bits, int offset>
struct SixteensLines : SixteensBase<Base> {
  using AfterMma = SixteensAfterMma<Base, bits, offset>;
  TW_CONSTANTS(int, kBits = bits);
  TW_MEMBER static constexpr float factor() { return Line<tw::bf16>::factor(); }
  TW_CONSTANTS(bool, kScaleAfterMma = false);
  TW_MEMBER static constexpr double rounding() { return bf16_line_rounding(); }
  struct Scales {
    Line<tw::bf16> of[4][2];
  };  // [group][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int part) {
    Scales s;
    TW_UNROLL for (int r = 0; r < 2; ++r) {
      const u32* row = reinterpret_cast<const u32*>(chunk + 40 * pair + 20 * r);
      const ByteTimes step = ByteTimes::of(low_half<tw::f16>(row[4]) * Line<tw::bf16>::step_factor<bits>(r), 128);
      TW_UNROLL for (u32 g = 0; g < 4; ++g) s.of[g][r] =
          Line<tw::bf16>::through<bits>(step.at(row[part] ^ 0x80808080u, g), static_cast<u32>(offset), r);
    }
    return s;
  }
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
    Line<tw::bf16>::template values<bits>(w, step, scales.of[step], a);
  }
};
template <class Element, class Base, int bits, int offset>
using SixteensTile =
    select<same<Element, tw::bf16>(), SixteensLines<Base, bits, offset>, SixteensScaled<Element, Base, bits, offset>>;

}  // namespace tw::fmt
