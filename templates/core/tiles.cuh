// SPDX-License-Identifier: Apache-2.0
// Tiles: weights as the warpgroup instruction takes them from registers. A packed matrix is a lossless reordering of a
// coded one, made once at load: for each strip of 64 rows, and each panel of 128 bytes of x along k (64 columns against
// 16-bit x, 128 against 8-bit x), the words of codes of 128 threads, so that a thread fetches its four fragments with
// 16-byte loads. Word i of thread t is at word 4 t + i % 4 of plane i / 4; words beyond the last whole four lie one plane
// of 128 words each. The scales of a strip's 64 rows are ordered by thread too: rows q and q + 8 of a warp's sixteen are
// neighbours, at 2 (8 warp + q) and the next.
//
// Fragment of step s (of four): register r of thread t holds row 16 (t / 32) + t % 32 / 4 + 8 (r % 2) and `width`
// elements (2 or 4 to a word) from k = 2 width (4 s) ... : column (8 s + t % 4 + 4 (r / 2)) * width of the panel.
//
// A coded format takes part if it has a template `Tile<Element>`, Element being x's (f16, bf16, e4m3 or i8), and
// kTiles<Element> says for which, with
//   kBits                          of a stored code: 4, 5, 6 or 8
//   kScaleK, kScaleBytes           columns per chunk of scales, bytes per row of one (0: no such stream)
//   kFactor                        what unpacked values lack, given to the epilogue
//   kDeferred                      fragments lack the scale, row_scale(scales, row) is it: one group per panel
//   kRounding                      largest relative error of an unpacked value against its weight's parts; 0: exact
//   code(block, i), put_code(...)  the stored form of element i of a block, and its inverse (into zeroed bits)
//   put_scales(out, data, scales, k), take_scales(in, data, scales, k)   a row's chunk from column k, and its inverse
//   Scales, scales(chunk, pair, part) two rows' scales in registers: rows 2 pair and 2 pair + 1 of a chunk, for its panel `part`
//   fragment(words, step, scales, a)
#pragma once
#include "core/ptx.cuh"

namespace tw {

// Where an element's code is: word of the thread, and the shift within it. Of 5- and 6-bit codes the lower four bits are
// placed as 4-bit codes, and the others in words behind, the two elements of a 16-bit pair in different halves.
template <int bits, int width> struct TilePlace {
  static constexpr int kLow = bits == 8 ? 8 : 4, kHigh = bits - kLow;
  static constexpr int kLowWords = kLow * width / 2, kWords = kLowWords + kHigh * width / 2;
  static_assert(kHigh == 0 || width == 2, "codes of five and six bits are for 16-bit x");
  TW_MEMBER static constexpr int word(int step, int r) {
    return kLow == 4 ? (width == 2 ? step : 2 * step + r / 2) : width == 2 ? 2 * step + r / 2 : 4 * step + r;
  }
  TW_MEMBER static constexpr int shift(int r, int e) {
    return kLow == 4 ? (width == 2 ? 4 * (r + 4 * e) : 4 * (2 * e + r % 2)) : width == 2 ? 8 * (2 * (r % 2) + e) : 8 * e;
  }
  TW_MEMBER static constexpr int high_word(int step) { return kLowWords + (kHigh == 2 ? step / 2 : 0); }
  TW_MEMBER static constexpr int high_shift(int step, int r, int e) {
    return (kHigh == 2 ? 2 * (4 * (step % 2) + r) : 4 * step + r) + 16 * e;
  }
  TW_MEMBER static void put(u32* words, int step, int r, int e, u32 code) {
    words[word(step, r)] |= (code & ((1u << kLow) - 1)) << shift(r, e);
    if constexpr (kHigh > 0) words[high_word(step)] |= (code >> kLow) << high_shift(step, r, e);
  }
  TW_MEMBER static u32 take(const u32* words, int step, int r, int e) {
    u32 code = (words[word(step, r)] >> shift(r, e)) & ((1u << kLow) - 1);
    if constexpr (kHigh > 0) code |= ((words[high_word(step)] >> high_shift(step, r, e)) & ((1u << kHigh) - 1)) << kLow;
    return code;
  }
};
template <class Element> constexpr int kTileWidth = 4 / static_cast<int>(sizeof(Element));
template <class Tile, class Element> constexpr int kTileWords = TilePlace<Tile::kBits, kTileWidth<Element>>::kWords;
// Row within the strip and column within the panel.
template <int width> TW_FN constexpr int tile_row(int thread, int r) { return 16 * (thread / 32) + thread % 32 / 4 + 8 * (r % 2); }
template <int width> TW_FN constexpr int tile_column(int thread, int step, int r, int e) {
  return (8 * step + thread % 4 + 4 * (r / 2)) * width + e;
}
// Where word i of a thread is, in words from the tile's begin.
template <int words> TW_FN constexpr int tile_word(int thread, int i) {
  return i / 4 * 512 + (i < words / 4 * 4 ? thread * 4 + i % 4 : i % 4 * 128 + thread);
}
// Where the scales of a strip's row are, in rows from the chunk's begin.
TW_FN constexpr int tile_slot(int row) { return row / 16 * 16 + row % 8 * 2 + row / 8 % 2; }

// Whether W has tiles for x of Element; a format without kTiles has none.
template <class W, class Element, class = void> struct HasTile { static constexpr bool value = false; };
template <class W, class Element> struct HasTile<W, Element, void_of<decltype(W::template kTiles<Element>)>> {
  static constexpr bool value = W::template kTiles<Element>;
};
template <class W, class Element> constexpr bool has_tile = HasTile<W, Element>::value;

// A stretch of a row in W's own layout, rebuilt from tiles: whole blocks, and whole chunks of scales.
template <class W, class Element> struct TiledUnit {
  using Tile = typename W::template Tile<Element>;
  static constexpr int kWidth = kTileWidth<Element>, kPanelK = 32 * kWidth, kWords = kTileWords<Tile, Element>;
  using Place = TilePlace<Tile::kBits, kWidth>;
  static constexpr int kColumns = max2(max2(W::kBlock, 32), Tile::kScaleBytes ? Tile::kScaleK : 0);
  static constexpr int kBlocks = kColumns / W::kBlock;
  static constexpr int kData = kBlocks * W::kDataBytes, kScales = kBlocks * W::kScaleBytes;
  static_assert(kColumns % W::kBlock == 0 && (Tile::kScaleBytes == 0 || kColumns % max2(1, Tile::kScaleK) == 0), "units");
  u8 data[kData], scales[max2(1, kScales)];

  // Columns from kColumns * unit on; those beyond k are junk. Without its codes: as if they were 0.
  template <bool codes> TW_MEMBER void read(const void* tile_data, const void* tile_scales, i64 k, i64 row, i64 unit) {
    for (int i = 0; i < kData; ++i) data[i] = 0;
    for (int i = 0; i < kScales; ++i) scales[i] = 0;
    const i64 strip = row / 64, first = unit * kColumns;
    const int in_strip = static_cast<int>(row % 64), columns = static_cast<int>(min2<i64>(kColumns, k - first));
    if constexpr (Tile::kScaleBytes > 0) {
      const u8* chunks = static_cast<const u8*>(tile_scales) + (strip * ceil_div64(k, Tile::kScaleK) * 64 + tile_slot(in_strip)) * Tile::kScaleBytes;
      for (int c = 0; c < columns; c += Tile::kScaleK)
        Tile::take_scales(chunks + (first + c) / Tile::kScaleK * (64 * Tile::kScaleBytes), data, scales, c);
    }
    if constexpr (codes) {
      const u32* panels = static_cast<const u32*>(tile_data) + strip * (k / kPanelK) * (128 * kWords);
      for (int i = 0; i < columns; ++i) {
        const int column = static_cast<int>((first + i) % kPanelK), e = column % kWidth, p = column / kWidth, step = p / 8;
        const int thread = in_strip / 16 * 32 + in_strip % 8 * 4 + p % 4, r = p / 4 % 2 * 2 + in_strip / 8 % 2;
        const u32* tile = panels + (first + i) / kPanelK * (128 * kWords);
        u32 code = (tile[tile_word<kWords>(thread, Place::word(step, r))] >> Place::shift(r, e)) & ((1u << Place::kLow) - 1);
        if constexpr (Place::kHigh > 0)
          code |= ((tile[tile_word<kWords>(thread, Place::high_word(step))] >> Place::high_shift(step, r, e)) & ((1u << Place::kHigh) - 1)) << Place::kLow;
        Tile::put_code(data + i / W::kBlock * W::kDataBytes, i % W::kBlock, code);
      }
    }
  }
};

// ---- pieces of fragment() --------------------------------------------------------------------------------------------
TW_DEVICE u32 both_halves(u16 h) { return h * 0x00010001u; }
// a b + c on both halves, rounded once.
TW_DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
#if defined(__CUDACC__)
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  return f32_to_f16_bits(static_cast<float>(static_cast<double>(low_half<f16>(a)) * low_half<f16>(b) + low_half<f16>(c))) |
         (static_cast<u32>(f32_to_f16_bits(static_cast<float>(static_cast<double>(high_half<f16>(a)) * high_half<f16>(b) + high_half<f16>(c)))) << 16);
#endif
}
TW_DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
#if defined(__CUDACC__)
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  const auto fma = [](float x, float y, float z) {
    return f32_to_bf16_bits(static_cast<float>(static_cast<double>(x) * y + z));  // both fit a double: rounded twice only in ties
  };
  return fma(low_half<bf16>(a), low_half<bf16>(b), low_half<bf16>(c)) |
         (static_cast<u32>(fma(high_half<bf16>(a), high_half<bf16>(b), high_half<bf16>(c))) << 16);
#endif
}
constexpr u32 kNegativeZeros = 0x80008000u;  // a b + -0 is a b, zeros and their signs included

// Codes of a step as pairs of 16-bit floats, minus `offset`, exact. Or-ed into the mantissa of 1024 (of 128 for bf16) a
// code is added to it; in f16 one nibble further up, 16 times the code.
template <class Element, int bits, int offset> struct TileCodes {
  using Place = TilePlace<bits, 2>;
  TW_MEMBER static void pairs(const u32* words, int step, u32 (&v)[4]) {
    if constexpr (bits == 8) bytes(words[2 * step], words[2 * step + 1], v);
    else if constexpr (same<Element, f16>) nibbles_f16(words, step, v);
    else nibbles_bf16(words, step, v);
  }

 private:
  TW_MEMBER static constexpr u32 pair(u32 half) { return half * 0x10001u; }
  TW_MEMBER static void bytes(u32 first, u32 second, u32 (&v)[4]) {
    static_assert(same<Element, f16> || offset == 128, "a bf16 holds bytes around zero only");
    TW_UNROLL for (int r = 0; r < 4; ++r) {
      const u32 word = r < 2 ? first : second;
      if constexpr (same<Element, f16>) {
        v[r] = sub_f16x2(prmt(word, 0x64646464u, r % 2 ? 0x4342u : 0x4140u), pair(0x6400u + offset));
      } else {
        // 128 + the lower seven bits; the top bit decides whether 256 or 128 is taken off.
        const u32 both = prmt(word, 0u, r % 2 ? 0x4342u : 0x4140u);
        v[r] = fma_bf16x2(mask_or<0x007f007fu, 0x43004300u>(both), 0x3f803f80u, minus(both & 0x00800080u));
      }
    }
  }
  TW_MEMBER static u32 minus(u32 top) { return (top ^ 0x00800080u) | 0xc300c300u; }  // -128, or with one exponent more -256
  TW_MEMBER static u32 high(const u32* words, int step, int r, int to) {  // the upper bits of both codes, moved to bit `to`
    if constexpr (Place::kHigh == 0) {
      return 0;
    } else {
      const u32 word = words[Place::high_word(step)];
      const int from = Place::high_shift(step, r, 0);
      return (from > to ? word >> (from - to) : word << (to - from)) & pair(((1u << Place::kHigh) - 1) << to);
    }
  }
  TW_MEMBER static void nibbles_f16(const u32* words, int step, u32 (&v)[4]) {
    const u32 word = words[step], next = word >> 8;
    TW_UNROLL for (int r = 0; r < 4; ++r) {
      if (r % 2 == 0)
        v[r] = sub_f16x2(mask_or<0x000f000fu, 0x64006400u>(r ? next : word) | high(words, step, r, 4), pair(0x6400u + offset));
      else  // / 16 - 64 - offset
        v[r] = fma_f16x2(mask_or<0x00f000f0u, 0x64006400u>(r == 3 ? next : word) | high(words, step, r, 8), 0x2c002c00u,
                         pair(0xd400u + 16 * offset));
    }
  }
  TW_MEMBER static void nibbles_bf16(const u32* words, int step, u32 (&v)[4]) {
    TW_UNROLL for (int r = 0; r < 4; ++r)
      v[r] = fma_bf16x2(mask_or<0x000f000fu, 0x43004300u>(words[step] >> (4 * r)) | high(words, step, r, 4), 0x3f803f80u,
                        pair(0xc300u + offset));
  }
};

// Pair r of a word's E2M1 codes, their fields moved to those of a 16-bit float: 2^-14 of the value in f16, 2^-126 in bf16.
template <class Element> TW_DEVICE u32 e2m1_pair(u32 word, int r) {
  constexpr int kTo = same<Element, f16> ? 9 : 6;  // of the lowest bit
  const int up = kTo - 4 * r, sign = 12 - 4 * r;
  const u32 magnitude = (up >= 0 ? word << up : word >> -up) & (0x00070007u << kTo);
  return ((word << sign) & 0x80008000u) | magnitude;
}

// A 16-bit float pair of scales for multiplying TileCodes. f16: as it is. bf16 cannot hold eleven bits, but its product
// with a code is rounded once all the same: the scale is taken apart into eight bits and the rest, whose product with up
// to five bits is exact.
template <class Element> struct PairScale;
template <> struct PairScale<f16> {
  u32 whole;
  TW_MEMBER static PairScale of(u32 word, int half) { return {prmt(word, 0u, half ? 0x3232u : 0x1010u)}; }
  TW_MEMBER u32 times(u32 v) const { return mul_f16x2(v, whole); }
};
template <> struct PairScale<bf16> {
  u32 most, rest;
  TW_MEMBER static PairScale of(u32 word, int half) {
    const float d = half ? high_half<f16>(word) : low_half<f16>(word);
    const float top = bits_as<float>(bits_as<u32>(d) & 0xffff0000u);
    return {pack_bf16x2(top, top), pack_bf16x2(d - top, d - top)};
  }
  TW_MEMBER u32 times(u32 v) const { return fma_bf16x2(v, most, fma_bf16x2(v, rest, kNegativeZeros)); }
};

// Tiles of formats with value = (code - offset) d, d a half per `group` elements: items of a chunk are those halves.
// Base: code(), put_code(), item(data, scales, g): the address of group g's scale.
template <class Element, class Base, int bits, int offset, int group> struct ScaledTile : Base {
  static constexpr int kBits = bits, kScaleK = group < 64 ? 64 : group, kGroups = kScaleK / group, kScaleBytes = 2 * kGroups;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kDeferred = false;
  static constexpr double kRounding = same<Element, f16> ? 4.8828125e-4 : 3.90625e-3;
  TW_MEMBER static void put_scales(u8* out, const u8* data, const u8* scales, i64 k) {
    for (int i = 0; i < kScaleBytes; ++i) out[i] = Base::item(const_cast<u8*>(data), const_cast<u8*>(scales), k / group + i / 2)[i % 2];
  }
  TW_MEMBER static void take_scales(const u8* in, u8* data, u8* scales, i64 k) {
    for (int i = 0; i < kScaleBytes; ++i) Base::item(data, scales, k / group + i / 2)[i % 2] = in[i];
  }
  struct Scales { PairScale<Element> d[kGroups == 2 ? 2 : 1][2]; };  // [group of the panel][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    static_assert(kGroups <= 2, "32 elements at least");
    Scales s;
    if constexpr (kGroups == 2) {
      const u32x2 q = *reinterpret_cast<const u32x2*>(chunk + 8 * pair);
      TW_UNROLL for (int g = 0; g < 2; ++g) s.d[g][0] = PairScale<Element>::of(q.x, g), s.d[g][1] = PairScale<Element>::of(q.y, g);
    } else {
      const u32 q = *reinterpret_cast<const u32*>(chunk + 4 * pair);
      s.d[0][0] = PairScale<Element>::of(q, 0), s.d[0][1] = PairScale<Element>::of(q, 1);
    }
    return s;
  }
  template <int words> TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
    u32 v[4];
    TileCodes<Element, bits, offset>::pairs(w, step, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = scales.d[kGroups == 2 ? step / 2 : 0][r % 2].times(v[r]);
  }
};

// The same with value = code d + m, f16 only: a chunk's items are d and m, the product and sum rounded once.
template <class Element, class Base, int bits, int group> struct AffineTile : Base {
  static_assert(group == 32, "of ggml");
  static constexpr int kBits = bits, kScaleK = 64, kScaleBytes = 8;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kDeferred = false;
  static constexpr double kRounding = 9.765625e-4;  // of |code d| + |m|, which is at most twice the largest weight of the block
  TW_MEMBER static void put_scales(u8* out, const u8* data, const u8* scales, i64 k) {
    for (int i = 0; i < kScaleBytes; ++i) out[i] = Base::item(const_cast<u8*>(data), const_cast<u8*>(scales), k / group + i / 4)[i % 4];
  }
  TW_MEMBER static void take_scales(const u8* in, u8* data, u8* scales, i64 k) {
    for (int i = 0; i < kScaleBytes; ++i) Base::item(data, scales, k / group + i / 4)[i % 4] = in[i];
  }
  struct Scales { u32 d[2][2], m[2][2]; };  // [group][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    const u32x4 q = *reinterpret_cast<const u32x4*>(chunk + 16 * pair);
    const u32 words[2][2] = {{q.x, q.z}, {q.y, q.w}};
    Scales s;
    TW_UNROLL for (int g = 0; g < 2; ++g)
      TW_UNROLL for (int r = 0; r < 2; ++r) s.d[g][r] = prmt(words[g][r], 0u, 0x1010u), s.m[g][r] = prmt(words[g][r], 0u, 0x3232u);
    return s;
  }
  template <int words> TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
    u32 v[4];
    TileCodes<Element, bits, 0>::pairs(w, step, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = fma_f16x2(v[r], scales.d[step / 2][r % 2], scales.m[step / 2][r % 2]);
  }
};

// Against signed bytes, exact: 4-bit codes of format value = (code - 8) d with a half d per 128. A code in the upper half of
// a byte, its top bit flipped, is 16 (code - 8).
TW_DEVICE void signed_nibbles_i8(const u32* words, int step, u32 (&a)[4]) {
  TW_UNROLL for (int r = 0; r < 4; ++r) {
    const u32 word = words[2 * step + r / 2];
    a[r] = ((r % 2 ? word : word << 4) & 0xf0f0f0f0u) ^ 0x80808080u;
  }
}
template <class Base> struct DeferredTile : Base {
  static constexpr int kBits = 4, kScaleK = 128, kScaleBytes = 2;
  static constexpr float kFactor = 0.0625f;
  static constexpr bool kDeferred = true;
  static constexpr double kRounding = 0;
  TW_MEMBER static void put_scales(u8* out, const u8* data, const u8* scales, i64 k) {
    for (int i = 0; i < 2; ++i) out[i] = Base::item(const_cast<u8*>(data), const_cast<u8*>(scales), k / 128)[i];
  }
  TW_MEMBER static void take_scales(const u8* in, u8* data, u8* scales, i64 k) {
    for (int i = 0; i < 2; ++i) Base::item(data, scales, k / 128)[i] = in[i];
  }
  struct Scales { float d[2]; };
  TW_MEMBER static float row_scale(const Scales& s, int row) { return s.d[row]; }
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    const u32 q = *reinterpret_cast<const u32*>(chunk + 4 * pair);
    return {{low_half<f16>(q), high_half<f16>(q)}};
  }
  template <int words> TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
    signed_nibbles_i8(w, step, a);
  }
};

}  // namespace tw
