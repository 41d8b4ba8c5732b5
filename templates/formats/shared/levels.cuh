// SPDX-License-Identifier: Apache-2.0
// Shared by formats of ggml whose codes of four bits name one of at most sixteen levels, which are signed bytes; under
// integer scales of sub-blocks and a half they are the values. A format of this kind has, beside a format's members,
//   Levels                       its table
//   nibble(block, i)             the code of element i of a block
// and those with blocks of 256 elements
//   step(block, j)               the integer scale of sub-block j, of kGroup elements
//   half_of(block)               the bits of the half
//   unit()                       a power of two; value = half step unit level, exact in single precision
#pragma once
#include "formats/shared/k_quants.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

// Sixteen signed bytes in words, the first lowest.
template <u32 a, u32 b, u32 c, u32 d>
struct Sixteen {
  TW_MEMBER static constexpr i32 level(u32 code) {
    return static_cast<i8>(((code < 4 ? a : code < 8 ? b : code < 12 ? c : d) >> (8 * (code % 4))) & 255u);
  }
  // The levels that the lower four nibbles of `codes` name, as the bytes of a word.
  TW_MEMBER static u32 bytes(u32 codes) {
    const u32 index = codes & 0x7777u;
    if constexpr (c == 0 && d == 0) return prmt(a, b, index);
    const u32 upper = prmt(0x0000ff00u, 0u, (codes >> 3) & 0x1111u);
    return (prmt(a, b, index) & ~upper) | (prmt(c, d, index) & upper);
  }
  // Of all nibbles of a word: those that are low in their bytes, and high.
  TW_MEMBER static void both(u32 codes, u32& low, u32& high) {
    const u32 first = bytes(codes), second = bytes(codes >> 16);
    low = prmt(first, second, 0x6420u), high = prmt(first, second, 0x7531u);
  }
};

// The levels of IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl): -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89
// 113.
using Iq4Levels = Sixteen<0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u>;

// The level of IQ4_NL nearest to v; of two as near the upper one (ggml's best_index_int8). A NaN is the last.
TW_FN u32 nearest_iq4(float v) {
  if (v <= static_cast<float>(Iq4Levels::level(0))) return 0;
  u32 above = 1;
  while (above < 15 && !(v < static_cast<float>(Iq4Levels::level(above)))) ++above;
  const float low = static_cast<float>(Iq4Levels::level(above - 1)), high = static_cast<float>(Iq4Levels::level(above));
  return sub_rn(v, low) < sub_rn(high, v) ? above - 1 : above;
}
// Sums over 32 elements, weighted by their squares, of codes under 1 / `inverse`.
struct Iq4Fit {
  float qx = 0.0f, q2 = 0.0f;
  TW_MEMBER Iq4Fit(const float* x, float inverse) {
    for (int i = 0; i < 32; ++i) {
      const float q = static_cast<float>(Iq4Levels::level(nearest_iq4(mul_rn(inverse, x[i])))), w = mul_rn(x[i], x[i]);
      qx = add_rn(qx, mul_rn(mul_rn(w, q), x[i]));
      q2 = add_rn(q2, mul_rn(mul_rn(w, q), q));
    }
  }
};
// The element of largest magnitude, the first of equals; 0 if it is below 1e-15, which ggml takes for zeros.
TW_FN float iq4_extreme(const float* x) {
  float extreme = 0.0f;
  for (int i = 0; i < 32; ++i)
    if (abs_f(x[i]) > abs_f(extreme)) extreme = x[i];
  return abs_f(extreme) < 1e-15f ? 0.0f : extreme;
}

// Bytes of a block from `at` on: `each` for every 32 elements, `half` for every 128, or `bytes` for all of them.
struct Part {
  int at, each, half, bytes;
};

// Blocks of 256 elements that are made of such parts, F::part(0) to F::part(F::kParts - 1), from even bytes on. A unit
// has those of its elements one after the other, each from a word's begin.
template <class F, int block_bytes, int size>
struct PartBlocks : Blocks256 {
  TW_CONSTANTS(int, kDataBytes = block_bytes, kErrorColumns = size);
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    const float half = f16_bits_to_f32(static_cast<u16>(F::half_of(data)));
    const float step = mul_rn(mul_rn(half, static_cast<float>(F::step(data, i / size))), F::unit());
    return mul_rn(step, static_cast<float>(F::Levels::level(F::nibble(data, i))));
  }

  TW_CONSTANTS(int, kGroup = size);
  TW_CONSTANTS(bool, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 256; }
  TW_MEMBER static constexpr int part_bytes(int p, int e) {
    const Part part = F::part(p);
    return part.each ? e / 32 * part.each : part.half ? max2(1, e / 128) * part.half : part.bytes;
  }
  TW_MEMBER static constexpr int part_word(int p, int e) {
    int words = 0;
    for (int q = 0; q < p; ++q) words += ceil_div(part_bytes(q, e), 4);
    return words;
  }
  template <int E>
  struct Unit {
    u32 raw[part_word(F::kParts, E)];
    int first;  // 32s before the first element
    // Of part p.
    TW_MEMBER u32 word(int p, int i) const { return raw[part_word(p, E) + i]; }
    TW_MEMBER u32 byte(int p, int i) const { return (word(p, i / 4) >> (8 * (i % 4))) & 255u; }
    TW_MEMBER u32 two(int p, int i) const { return (word(p, i / 2) >> (16 * (i % 2))) & 0xffffu; }
  };
  template <int E, int p = 0>
  TW_MEMBER static void load_parts(Unit<E>& u, const u8* block) {
    if constexpr (p < F::kParts) {
      constexpr Part kPart = F::part(p);
      load_halves<part_bytes(p, E)>(u.raw + part_word(p, E),
                                    block + kPart.at + u.first * kPart.each + u.first / 4 * kPart.half);
      load_parts<E, p + 1>(u, block);
    }
  }
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    u.first = E == 256 ? 0 : static_cast<int>(k / 32 % 8);
    load_parts<E>(u, data + k / 256 * block_bytes);
  }

  // Copies as stored are of whole halves of a block, and of what belongs to all of it. They are copied in the largest
  // pieces that divide their bytes, so in front of them are some more where those would not be aligned.
  TW_MEMBER static constexpr int raw_begin(int p) {
    int bytes = raw_front();
    for (int q = 0; q < p; ++q) bytes += part_bytes(q, 128);
    return bytes;
  }
  TW_MEMBER static constexpr int raw_front() {
    int align = run_alignment(block_bytes), bytes = 0, front = 0;
    for (int q = 0; q < F::kParts; ++q) {
      align = min2(align, run_alignment(F::part(q).at + (F::part(q).at ? 0 : 16)));
      align = min2(align, run_alignment(part_bytes(q, 128)));
      bytes += part_bytes(q, 128);
    }
    while (run_alignment(bytes + front) > align) front += align;
    return front;
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return raw_begin(F::kParts);
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) {
    const int half = static_cast<int>(k0 / 128 % 2);
    int at = byte;
    TW_UNROLL for (int p = 0; p < F::kParts; ++p) {
      if (byte >= raw_begin(p))
        at = F::part(p).at + half * (4 * F::part(p).each + F::part(p).half) + byte - raw_begin(p);
    }
    return k0 / 256 * block_bytes + at;
  }
  template <int E, int p = 0>
  TW_MEMBER static void load_raw_parts(Unit<E>& u, const u8* raw) {
    if constexpr (p < F::kParts) {
      load_shared_words<part_bytes(p, E), 2>(u.raw + part_word(p, E),
                                             raw + raw_begin(p) + u.first % 4 * F::part(p).each);
      load_raw_parts<E, p + 1>(u, raw);
    }
  }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64 k0) {
    static_assert(E == 64, "tiles are unpacked by 64");
    u.first = static_cast<int>((k0 + k) / 32 % 8);
    load_raw_parts<E>(u, raw);
  }

  TW_MEMBER static float scale_of_step(u32 half, i32 step) {
    return f16_bits_to_f32(static_cast<u16>(half)) * static_cast<float>(step) * F::unit();
  }
};

// Tiles for 16-bit x: codes of four bits, whose levels a thread looks up. Of these the words that TileCodes takes bytes
// from, each with its top bit flipped.
template <class Element, class Levels, int words>
TW_DEVICE void level_pairs(const u32 (&w)[words], int step, u32 (&v)[4]) {
  const u32 first = Levels::bytes(w[step]) ^ 0x80808080u, second = Levels::bytes(w[step] >> 16) ^ 0x80808080u;
  const u32 bytes[2] = {prmt(first, second, 0x5140u), prmt(first, second, 0x7362u)};
  TileCodes<Element, 8>::template pairs<128>(bytes, 0, v);
}
// Under a half per 32 elements.
template <class Element, class Base, class Levels>
struct LevelsTile : ScaledTile<Element, Base, 4, 8, 32> {
  using Scaled = ScaledTile<Element, Base, 4, 8, 32>;
  struct AfterMma : Scaled::AfterMma {
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const typename Scaled::AfterMma::Scales&,
                                   u32 (&a)[4]) {
      level_pairs<Element, Levels>(w, step, a);
    }
  };
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const typename Scaled::Scales& scales, u32 (&a)[4]) {
    u32 v[4];
    level_pairs<Element, Levels>(w, step, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = scales.d[step / 2][r % 2].times(v[r]);
  }
};
// Under sixteen integer scales and a half per 256. Base: as SixteensBase wants it, and unit().
template <class Element, class Base, class Levels>
struct LevelsSixteens : SixteensScaled<Element, Base, 4, 8> {
  using Sixteens = SixteensScaled<Element, Base, 4, 8>;
  TW_MEMBER static constexpr float factor() { return Base::unit(); }
  struct After : SixteensAfterMma<Base, 4, 8> {
    TW_MEMBER static constexpr float factor() { return Base::unit(); }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step,
                                   const typename SixteensAfterMma<Base, 4, 8>::Scales&, u32 (&a)[4]) {
      level_pairs<Element, Levels>(w, step, a);
    }
  };
  using AfterMma = AfterMmaForBf16<Element, After, LevelsSixteens>;
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const typename Sixteens::Scales& scales,
                                 u32 (&a)[4]) {
    u32 v[4];
    level_pairs<Element, Levels>(w, step, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = scales.d[step][r % 2].times(v[r]);
  }
};

}  // namespace tw::fmt
