// SPDX-License-Identifier: Apache-2.0
// Building blocks for the fragment() of a tile (formats/shared/tiles.cuh): codes become 16-bit floats, integers or
// E4M3; scales and minima are applied to them, or to sums of products after the matrix instruction.
#pragma once
#include "formats/shared/tiles.cuh"

namespace tw {

// Where E2M1 codes for 16-bit x are (Tile::Place), so that few operations move magnitude and sign to those of a float:
// a shift of both, or a product that shifts them by different amounts, and what else it makes is masked out.
template <class Element>
struct E2m1Place {
  TW_CONSTANTS(bool, kHalf = same<Element, f16>());
  TW_CONSTANTS(int, kWords = 4, kTo = kHalf ? 9 : 6);  // where a float's magnitude begins
  TW_MEMBER static constexpr int magnitude(int r) { return !kHalf && r == 3 ? 9 : kTo - 3 * r; }
  TW_MEMBER static constexpr int sign(int r) { return r < 2 ? 15 - 3 * r : kHalf ? 16 - r : 11 + r; }
  TW_MEMBER static void put(u32* words, int step, int r, int e, u32 code) {
    words[step] |= ((code & 7u) << magnitude(r) | (code >> 3) << sign(r)) << (16 * e);
  }
  template <class At>
  TW_MEMBER static u32 get(const At& at, int step, int r, int e) {
    const u32 half = at(step) >> (16 * e);
    return (half >> magnitude(r) & 7u) | (half >> sign(r) & 1u) << 3;
  }
  // A pair as floats: 2^-14 of the values in f16, 2^-126 in bf16.
  TW_MEMBER static u32 pair(u32 word, int r) {
    const int up = kTo - magnitude(r), sign_up = 15 - sign(r);
    const u32 mask = (0x8000u | 7u << kTo) * 0x10001u;
    if (up == sign_up) return (word << up) & mask;
    if (up < 0) return ((word >> -up) & mask & 0x7fff7fffu) | ((word << sign_up) & 0x80008000u);
    return (word & (7u << magnitude(r) | 1u << sign(r)) * 0x10001u) * (1u << up | 1u << sign_up) & mask;
  }
  // The same where r is not known when this is compiled: what to keep of the word, and what moves that.
  struct Move {
    u32 keep, factor;
    TW_MEMBER Move() {}
    TW_MEMBER Move(int r, int other, bool first)
        : keep(first ? kept(r) : kept(other)), factor(first ? moved(r) : moved(other)) {}
    TW_MEMBER u32 pair(u32 word) const { return (word & keep) * factor & (0x8000u | 7u << kTo) * 0x10001u; }
    TW_MEMBER static constexpr u32 kept(int r) { return (7u << magnitude(r) | 1u << sign(r)) * 0x10001u; }
    TW_MEMBER static constexpr u32 moved(int r) { return 1u << (kTo - magnitude(r)) | 1u << (15 - sign(r)); }
  };
};

TW_CONSTANTS(u32, kNegativeZeros = 0x80008000u);  // a b + -0 is a b, zeros and their signs included

// Codes of a step as pairs of 16-bit floats, minus an offset, exact. Or-ed into the mantissa of 1024 (of 128 for bf16)
// a code is added to it; in f16, if it stays b bits further up, 2^b times the code.
template <class Element, int bits>
struct TileCodes {
  using Place = TilePlace<bits, 2>;
  template <int offset>
  TW_MEMBER static void pairs(const u32* words, int step, u32 (&v)[4]) {
    if constexpr (bits == 8) {
      bytes<offset>(words[2 * step], words[2 * step + 1], v);
    } else {
      v[0] = pair<0>(words, step, less<0>(offset)), v[1] = pair<1>(words, step, less<1>(offset));
      v[2] = pair<2>(words, step, less<2>(offset)), v[3] = pair<3>(words, step, less<3>(offset));
    }
  }
  // The codes themselves, in the lowest eight bits of each half: a bf16 of such bits is 2^-133 of the integer. To save
  // shifts, those of the second row stay integer_up() bits further up.
  TW_MEMBER static constexpr int integer_up(int row) { return bits == 4 ? 4 * row : 0; }
  TW_MEMBER static void integers(const u32* words, int step, u32 (&v)[4]) {
    static_assert(bits < 8, "an offset would be too long for a bf16");
    TW_UNROLL for (int r = 0; r < 4; ++r) {
      const int up = integer_up(r % 2);
      v[r] =
          ((words[Place::word(step, r)] >> (Place::shift(step, r, 0) - up)) & (twice((1u << Place::kLow) - 1) << up)) |
          high(words, step, r, Place::kLow);
    }
  }
  // Each of the two rows with an offset of its own, as ZeroPoint gives it.
  TW_MEMBER static void pairs(const u32* words, int step, u32 first, u32 second, u32 (&v)[4]) {
    static_assert(Place::kLow == 4, "rows differ in where their codes are");
    v[0] = pair<0>(words, step, first), v[1] = pair<1>(words, step, second);
    v[2] = pair<2>(words, step, first), v[3] = pair<3>(words, step, second);
  }

 private:
  TW_CONSTANTS(bool, kHalf = same<Element, f16>());
  TW_MEMBER static constexpr u32 twice(u32 half) { return half * 0x10001u; }
  // The bits by which the codes of register r are shifted up in the mantissa: f16 has room to save shifts.
  TW_MEMBER static constexpr int up(int r) { return !kHalf ? 0 : Place::kLow == 4 ? 4 * (r % 2) : 2 * r; }
  // 1024 + offset where the code is not moved up, else -(2^(10 - up) + offset); of bf16 -(128 + offset).
  template <int r>
  TW_MEMBER static constexpr u32 less(int offset) {
    if (!kHalf) return twice(0xc300u + static_cast<u32>(offset));
    return twice(up(r) == 0 ? 0x6400u + static_cast<u32>(offset)
                            : 0x8000u + ((25u - up(r)) << 10) + (static_cast<u32>(offset) << up(r)));
  }
  template <int r>
  TW_MEMBER static u32 pair(const u32* words, int step, u32 offset) {
    constexpr int kUp = up(r);
    const u32 low = words[Place::word(step, r)] >> (Place::shift(step, r, 0) - kUp);
    const u32 v = mask_xor<twice(((1u << Place::kLow) - 1) << kUp), twice(kHalf ? 0x6400u : 0x4300u)>(low) |
                  high(words, step, r, kUp + Place::kLow);
    if constexpr (!kHalf)
      return fma2<bf16>(v, twice(0x3f80u), offset);
    else if constexpr (kUp == 0)
      return sub_f16x2(v, offset);
    else
      return fma2<f16>(v, twice((15u - kUp) << 10), offset);
  }
  TW_MEMBER static u32 high(const u32* words, int step, int r,
                            int to) {  // the upper bits of both codes, moved to bit `to`
    if constexpr (Place::kHigh == 0) {
      return 0;
    } else {
      const u32 word = words[Place::high_word(step)];
      const int from = Place::high_shift(step, r, 0);
      return (from > to ? word >> (from - to) : word << (to - from)) & twice(((1u << Place::kHigh) - 1) << to);
    }
  }
  template <int offset>
  TW_MEMBER static void bytes(u32 first, u32 second, u32 (&v)[4]) {
    static_assert(kHalf || offset == 128, "a bf16 holds bytes around zero only");
    TW_UNROLL for (int r = 0; r < 4; ++r) {
      const u32 word = r < 2 ? first : second;
      if constexpr (kHalf) {
        v[r] = sub_f16x2(prmt(word, 0x64646464u, r % 2 ? 0x4342u : 0x4140u), twice(0x6400u + offset));
      } else {
        // 128 + the lower seven bits; the top bit decides whether 256 or 128 is taken off.
        const u32 both = prmt(word, 0u, r % 2 ? 0x4342u : 0x4140u);
        v[r] = fma2<bf16>(mask_xor<0x007f007fu, 0x43004300u>(both), 0x3f803f80u, minus(both & 0x00800080u));
      }
    }
  }
  TW_MEMBER static u32 minus(u32 top) {
    return (top ^ 0x00800080u) | 0xc300c300u;
  }  // -128, or with one exponent more -256
};

// The values of a pair of E2M1 codes.
TW_DEVICE u32 e2m1_values(u32 word, int r) {
  return fma2<bf16>(E2m1Place<bf16>::pair(word, r), 0x7e807e80u, kNegativeZeros);
}  // 2^126

// Elements of one byte against 16-bit x, exact. Of a signed byte the top bit is stored flipped.
template <class T, class Element>
struct ByteTile : UnscaledTile {
  TW_CONSTANTS(int, kBits = 8);
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  TW_CONSTANTS(u32, kFlip = same<T, i8>() ? 0x80u : 0u);
  TW_MEMBER static u32 code(const u8* block, int i) { return block[i] ^ kFlip; }
  TW_MEMBER static void put_code(u8* block, int i, u32 code) { block[i] = static_cast<u8>(code ^ kFlip); }
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
    if constexpr (same<T, i8>()) {
      TileCodes<Element, 8>::template pairs<128>(w, step, a);
    } else {
      TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = widen_fp8x2<Element, T>(w[2 * step + r / 2], r % 2);
    }
  }
};
// Four-bit codes less 8 against 16-bit x, exact. Base: code(), put_code().
template <class Element, class Base>
struct NibbleIntegersTile : Base {
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  template <int words, class Scales>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
    TileCodes<Element, 4>::template pairs<8>(w, step, a);
  }
};

// A 16-bit float pair of scales for multiplying TileCodes. f16: as it is. bf16 cannot hold eleven bits, but its product
// with a code is rounded once all the same: the scale is taken apart into eight bits and the rest, whose product with
// up to five bits is exact.
template <class Element>
struct PairScale;
template <>
struct PairScale<f16> {
  u32 whole;
  TW_MEMBER static PairScale of(u32 word, int half) { return {spread(word, half)}; }
  TW_MEMBER u32 times(u32 v) const { return mul_f16x2(v, whole); }
  TW_MEMBER u32 times(u32 v, u32 plus) const { return fma2<f16>(v, whole, plus); }
};
template <>
struct PairScale<bf16> {
  u32 most, rest;
  TW_MEMBER static PairScale of(float d) {
    const float top = bits_as<float>(bits_as<u32>(d) & 0xffff0000u);
    return {pack_bf16x2(top, top), pack_bf16x2(d - top, d - top)};
  }
  TW_MEMBER static PairScale of(u32 word, int half) { return of(half ? high_half<f16>(word) : low_half<f16>(word)); }
  TW_MEMBER u32 times(u32 v) const { return times(v, kNegativeZeros); }
  TW_MEMBER u32 times(u32 v, u32 plus) const { return fma2<bf16>(v, most, fma2<bf16>(v, rest, plus)); }
};
// value = code step + start, for both halves of a pair. f16: of codes as TileCodes::pairs() has them. bf16: of those of
// integers(), so that no instruction makes floats of them. What these lack is in the step, but for a power of two that
// factor() gives back: with it the largest step would not be finite.
template <class Element>
struct Line;
template <>
struct Line<f16> {
  u32 step, start;
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  template <int bits, int words>
  TW_MEMBER static void values(const u32 (&w)[words], int at, const Line (&rows)[2], u32 (&a)[4]) {
    u32 v[4];
    TileCodes<f16, bits>::template pairs<0>(w, at, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = fma2<f16>(v[r], rows[r % 2].step, rows[r % 2].start);
  }
};
template <>
struct Line<bf16> {
  u32 step, start;
  TW_MEMBER static constexpr float factor() { return 1.099511627776e12f; }  // 2^40
  TW_MEMBER static constexpr float start_factor() { return 1.0f / factor(); }
  template <int bits>
  TW_MEMBER static constexpr float step_factor(int row) {  // 2^(133 - 40), less what integers() leaves further up
    return 9.9035203142830422e27f / static_cast<float>(1 << TileCodes<bf16, bits>::integer_up(row));
  }
  // Both of them times their factors.
  TW_MEMBER static Line of(float step, float start) { return {pack_bf16x2(step, step), pack_bf16x2(start, start)}; }
  // 0 at code `zero`.
  template <int bits>
  TW_MEMBER static Line through(float step, u32 zero, int row) {
    const u32 both = pack_bf16x2(step, step), integer = zero << TileCodes<bf16, bits>::integer_up(row);
    return {both, fma2<bf16>(both, (0x8000u | integer) * 0x10001u, kNegativeZeros)};
  }
  template <int bits, int words>
  TW_MEMBER static void values(const u32 (&w)[words], int at, const Line (&rows)[2], u32 (&a)[4]) {
    u32 v[4];
    TileCodes<bf16, bits>::integers(w, at, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = fma2<bf16>(v[r], rows[r % 2].step, rows[r % 2].start);
  }
};

// The relative error of a weight that is rounded once. For bf16 the second product, 2^-7 of the first, is rounded too.
template <class Element>
TW_FN constexpr double rounded_once() {
  return same<Element, f16>() ? 4.8828125e-4 : 3.94e-3;
}
// And of a bf16 whose step or start was rounded before.
TW_FN constexpr double bf16_line_rounding() { return 7.83e-3; }

// Chunks of scales that are items of the format, `bytes` per `group` elements. Base: code(), put_code(), and
// item(data, scales, g), the address of group g's.
template <class Base, int group, int bytes>
struct ItemTile : Base {
  TW_CONSTANTS(int, kScaleK = group < 64 ? 64 : group, kGroups = kScaleK / group, kScaleBytes = bytes * kGroups);
  static_assert(kGroups <= 2, "32 elements at least");
  TW_MEMBER static void put_scales(u8* out, const u8* data, const u8* scales, i64 k) {
    for (int i = 0; i < kScaleBytes; ++i)
      out[i] = Base::item(const_cast<u8*>(data), const_cast<u8*>(scales), k / group + i / bytes)[i % bytes];
  }
  TW_MEMBER static void take_scales(const u8* in, u8* data, u8* scales, i64 k) {
    for (int i = 0; i < kScaleBytes; ++i) Base::item(data, scales, k / group + i / bytes)[i % bytes] = in[i];
  }
};

// If a minimum is applied to sums of x, they and the sums of codes may cancel. This is the rounding of either in single
// precision.
TW_FN constexpr double after_mma_rounding() { return 3.814697265625e-6; }

// Fragments that are integers, exact: code - offset.
template <class Element, int bits, int offset>
struct Integers {
  TW_CONSTANTS(int, kBits = bits);
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  TW_CONSTANTS(bool, kScaleAfterMma = true);
  template <int words, class Scales>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
    TileCodes<Element, bits>::template pairs<offset>(w, step, a);
  }
};

// Tiles of formats with value = (code - offset) d, d a half per `group` elements: exact integers, d after the MMA.
template <class Element, class Base, int bits, int offset, int group>
struct ScaledIntegers : ItemTile<Base, group, 2>, Integers<Element, bits, offset> {
  TW_CONSTANTS(int, kGroups = ItemTile<Base, group, 2>::kGroups);
  TW_CONSTANTS(bool, kOffset = false);
  TW_MEMBER static constexpr double rounding() { return 0; }
  struct Scales {
    u32 d[2];
  };  // of a row, for each group of the panel
  TW_MEMBER static float row_scale(const Scales& s, int row, int step) {
    return step * kGroups / 4 ? high_half<f16>(s.d[row]) : low_half<f16>(s.d[row]);
  }
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    if constexpr (kGroups == 2) {
      const u32x2 q = *reinterpret_cast<const u32x2*>(chunk + 8 * pair);
      return {{q.x, q.y}};
    } else {
      const u32 q = *reinterpret_cast<const u32*>(chunk + 4 * pair);
      return {{q, q >> 16}};
    }
  }
};

// The same as weights, rounded.
template <class Element, class Base, int bits, int offset, int group>
struct ScaledTile : ItemTile<Base, group, 2> {
  TW_CONSTANTS(int, kBits = bits, kGroups = ItemTile<Base, group, 2>::kGroups);
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  TW_CONSTANTS(bool, kScaleAfterMma = false, kOffset = false);
  TW_MEMBER static constexpr double rounding() { return rounded_once<Element>(); }
  using AfterMma = ScaledIntegers<Element, Base, bits, offset, group>;
  struct Scales {
    PairScale<Element> d[kGroups][2];
  };  // [group of the panel][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    Scales s;
    if constexpr (kGroups == 2) {
      const u32x2 q = *reinterpret_cast<const u32x2*>(chunk + 8 * pair);
      TW_UNROLL for (int g = 0; g < 2; ++g) s.d[g][0] = PairScale<Element>::of(q.x, g),
                                            s.d[g][1] = PairScale<Element>::of(q.y, g);
    } else {
      const u32 q = *reinterpret_cast<const u32*>(chunk + 4 * pair);
      s.d[0][0] = PairScale<Element>::of(q, 0), s.d[0][1] = PairScale<Element>::of(q, 1);
    }
    return s;
  }
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
    u32 v[4];
    TileCodes<Element, bits>::template pairs<offset>(w, step, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = scales.d[step * kGroups / 4][r % 2].times(v[r]);
  }
};

// Applying minima and scales of 16 to sums pays off for bf16, whose weights take two operations for them, and not for
// f16, whose weights take one.
template <class Element, class AfterMma, class Tile>
using AfterMmaForBf16 = select<same<Element, bf16>(), AfterMma, Tile>;

// AffineTile computes (code - z) d + m of a row's codes, with z as TileCodes wants it.
template <class Element>
struct Affine {
  PairScale<Element> d;
  u32 m, z;
};
// value = code d + m. `item`: d low, m high.
template <class Element>
struct Minimum {
  TW_CONSTANTS(bool, kZero = false);
  TW_MEMBER static Affine<Element> of(u32 item, int) {
    u32 m = spread(item, 1);
    if constexpr (same<Element, bf16>()) m = pack_bf16x2(high_half<f16>(item), high_half<f16>(item));
    return {PairScale<Element>::of(item, 0), m, 0};
  }
  TW_MEMBER static float minimum(u32 item) { return high_half<f16>(item); }
};
// value = (code - z) d. `item`: d low, z high. An integer is taken off the code, exactly; of any other z what that
// leaves, times d, is m.
template <class Element>
struct ZeroPoint {
  TW_CONSTANTS(bool, kZero = true);
  TW_MEMBER static Affine<Element> of(u32 item, int row) {
    const PairScale<Element> d = PairScale<Element>::of(item, 0);
    if constexpr (same<Element, f16>()) {
      constexpr u32 k1024 = 0x64006400u, kMinus1024 = 0xe400e400u, kMinus64 = 0xd400d400u;
      const u32 z = spread(item, 1);
      const u32 less = row ? sub_f16x2(kMinus64, z) : sub_f16x2(z, kMinus1024);
      const u32 taken = row ? sub_f16x2(kMinus64, less) : sub_f16x2(less, k1024);
      return {d, d.times(sub_f16x2(taken, z)), less};
    } else {
      const float z = high_half<f16>(item);
      const u32 less = pack_bf16x2(-128.0f - z, -128.0f - z);
      const float m = (-128.0f - low_half<bf16>(less) - z) * low_half<f16>(item);
      return {d, pack_bf16x2(m, m), less};
    }
  }
  TW_MEMBER static float minimum(u32 item) { return -low_half<f16>(item) * high_half<f16>(item); }
};
// Tiles of formats with two halves per `group` elements that Rule<Element> knows the meaning of: applied after the MMA,
// and to weights.
template <class Element, class Base, int bits, int group, template <class> class Rule>
struct AffineAfterMma : ItemTile<Base, group, 4>, Integers<Element, bits, 0> {
  TW_CONSTANTS(int, kGroups = ItemTile<Base, group, 4>::kGroups);
  TW_CONSTANTS(bool, kOffset = true);
  TW_MEMBER static constexpr double rounding() { return after_mma_rounding(); }
  struct Scales {
    u32 items[2 * kGroups];
  };  // of the first row, of the second
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    Scales s;
    load_shared_words<8 * kGroups, 8 * kGroups>(s.items, chunk + 8 * kGroups * pair);
    return s;
  }
  TW_MEMBER static u32 item(const Scales& s, int row, int step) { return s.items[kGroups * row + step * kGroups / 4]; }
  TW_MEMBER static float row_scale(const Scales& s, int row, int step) { return low_half<f16>(item(s, row, step)); }
  TW_MEMBER static float row_minimum(const Scales& s, int row, int step) {
    return Rule<bf16>::minimum(item(s, row, step));
  }
};
template <class Element, class Base, int bits, int group, template <class> class Rule>
struct AffineTile : ItemTile<Base, group, 4> {
  using AfterMma = AfterMmaForBf16<Element, AffineAfterMma<bf16, Base, bits, group, Rule>, AffineTile>;
  TW_CONSTANTS(int, kBits = bits, kGroups = ItemTile<Base, group, 4>::kGroups);
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  TW_CONSTANTS(bool, kScaleAfterMma = false, kOffset = true);
  TW_MEMBER static constexpr double rounding() { return rounded_once<Element>(); }  // m as well
  struct Scales {
    Affine<Element> of[kGroups][2];
  };  // [group of the panel][row]
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    u32 items[2 * kGroups];  // of the first row, of the second
    load_shared_words<8 * kGroups, 8 * kGroups>(items, chunk + 8 * kGroups * pair);
    Scales s;
    TW_UNROLL for (int g = 0; g < kGroups; ++g) TW_UNROLL for (int r = 0; r < 2; ++r) s.of[g][r] =
        Rule<Element>::of(items[kGroups * r + g], r);
    return s;
  }
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
    const Affine<Element>(&rows)[2] = scales.of[step * kGroups / 4];
    u32 v[4];
    if constexpr (Rule<Element>::kZero)
      TileCodes<Element, bits>::pairs(w, step, rows[0].z, rows[1].z, v);
    else
      TileCodes<Element, bits>::template pairs<0>(w, step, v);
    TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = rows[r % 2].d.times(v[r], rows[r % 2].m);
  }
};

// Codes 0 .. 15 that stand for -8 .. 7, against 8-bit x, exact. stored(), code(): what a tile holds, and its inverse.
template <class Element>
struct SignedNibbles;
template <>
struct SignedNibbles<i8> {
  TW_MEMBER static constexpr float factor() { return 0.0625f; }
  TW_MEMBER static u32 stored(u32 code) { return code; }
  TW_MEMBER static u32 code(u32 stored) { return stored; }
  // A code in the upper half of a byte, its top bit flipped, is 16 (code - 8).
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, u32 (&a)[4]) {
    TW_UNROLL for (int r = 0; r < 4; ++r) {
      const u32 word = w[2 * step + r / 2];
      a[r] = ((r % 2 ? word : word << 4) & 0xf0f0f0f0u) ^ 0x80808080u;
    }
  }
};
template <>
struct SignedNibbles<e4m3> {
  TW_MEMBER static constexpr float factor() { return 256.0f; }
  // E4M3 codes count in steps of 2^-9 up to 16, so that 2 |v| is one, and 2^-8 of |v|. Stored are the sign s in the
  // lowest bit and |v| - s above it: that nibble + 0x81 s is 2 |v| with the sign on top.
  TW_MEMBER static u32 stored(u32 code) { return code < 8 ? 2 * (7 - code) + 1 : 2 * (code - 8); }
  TW_MEMBER static u32 code(u32 stored) { return stored % 2 ? 7 - stored / 2 : 8 + stored / 2; }
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, u32 (&a)[4]) {
    TW_UNROLL for (int r = 0; r < 4; ++r) {
      const u32 word = r % 2 ? w[2 * step + r / 2] >> 4 : w[2 * step + r / 2];
      a[r] = (word & 0x0f0f0f0fu) + (word & 0x01010101u) * 0x81u;
    }
  }
};
// Base: code(), put_code() of SignedNibbles' codes.
template <class Element, class Base>
struct SignedNibblesTile : Base {
  TW_MEMBER static constexpr float factor() { return SignedNibbles<Element>::factor(); }
  TW_MEMBER static u32 code(const u8* block, int i) { return SignedNibbles<Element>::stored(Base::code(block, i)); }
  TW_MEMBER static void put_code(u8* block, int i, u32 stored) {
    Base::put_code(block, i, SignedNibbles<Element>::code(stored));
  }
  template <int words, class Scales>
  TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
    SignedNibbles<Element>::fragment(w, step, a);
  }
};
// The same with a half d per 128 codes.
template <class Element, class Base>
struct SignedNibblesAfterMma : ItemTile<SignedNibblesTile<Element, Base>, 128, 2> {
  using AfterMma = void;
  TW_CONSTANTS(int, kBits = 4);
  TW_CONSTANTS(bool, kScaleAfterMma = true, kOffset = false);
  TW_MEMBER static constexpr double rounding() { return 0; }
  struct Scales {
    float d[2];
  };
  TW_MEMBER static float row_scale(const Scales& s, int row, int = 0) { return s.d[row]; }
  TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
    const u32 q = *reinterpret_cast<const u32*>(chunk + 4 * pair);
    return {{low_half<f16>(q), high_half<f16>(q)}};
  }
};

// Against bytes: 32 columns, a group of q8_1's, are one step of a matrix instruction of bytes, as which a thread takes
// the codes of two steps. In what order is left to it, if x has the same: a register is four codes of a row, of columns
// 2 (t % 4), the next, and those eight further, and kOrder brings x's pairs of these into the same order (prmt).
// factor(): what values less the offset lack.
template <int bits, int offset>
struct TileBytes {
  using Place = TilePlace<bits, 2>;
  TW_CONSTANTS(bool, kHigh = bits == 4 && offset == 8);  // codes in the upper halves of bytes
  TW_CONSTANTS(u32, kOrder = bits == 8 ? 0x5410u : 0x5140u);
  TW_MEMBER static constexpr float factor() { return kHigh ? 0.0625f : 1.0f; }
  static_assert(bits == 8 ? offset == 128 : offset == 0 || offset == 1 << (bits - 1), "bytes with a sign");
  template <int words>
  TW_MEMBER static void fragment(const u32 (&w)[words], int group, u32 (&a)[4]) {
    TW_UNROLL for (int r = 0; r < 4; ++r) {
      const int step = 2 * group + r / 2, row = r % 2;
      const u32 word = w[Place::word(step, row)];
      if constexpr (bits == 8)
        a[r] = prmt(word, w[Place::word(step, 2)], row ? 0x7632u : 0x5410u) ^ 0x80808080u;
      else if constexpr (kHigh)
        a[r] = mask_xor<0xf0f0f0f0u, 0x80808080u>(row ? word : word << 4);
      else
        a[r] = (word >> (4 * row)) & 0x0f0f0f0fu;
      if constexpr (bits == 5) {
        const u32 high = w[Place::high_word(step)];
        const u32 near = high >> Place::high_shift(step, row, 0), far = high >> Place::high_shift(step, row + 2, 0);
        a[r] |= (near & 0x00010001u) << 4 | (far & 0x00010001u) << 12;
        if (offset) a[r] = (a[r] + 0x70707070u) ^ 0x80808080u;  // less 16: no sum has a carry
      }
    }
  }
};
// Tile: one with kScaleAfterMma for f16, which Codes take too; with few tokens as bytes.
template <class Tile, int bits, int offset>
struct CodesTile : Tile {
  struct AfterMma : Tile {
    using Bytes = TileBytes<bits, offset>;
    TW_MEMBER static constexpr float factor() { return Bytes::factor(); }
  };
};
template <class Base, int bits, int offset, int group>
struct ScaledTile<Codes, Base, bits, offset, group>
    : CodesTile<ScaledIntegers<f16, Base, bits, offset, group>, bits, offset> {};
template <class Base, int bits, int group, template <class> class Rule>
struct AffineTile<Codes, Base, bits, group, Rule> : CodesTile<AffineAfterMma<f16, Base, bits, group, Rule>, bits, 0> {};

}  // namespace tw
