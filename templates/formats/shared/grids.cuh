// SPDX-License-Identifier: Apache-2.0
// Shared by ggml's formats whose codes are indices into a list of vectors, "grid": eight elements, or twice four, are
// an index or two, and what a sign does to them. A format of this kind is one of levels (formats/shared/levels.cuh)
// with
//   grid(i), kEntries, kWide     its list, ascending, and how many elements an entry has: 8 in two bits each, or 4 in
//                                four bits each
//   signs()                      what the sign of an eight is: of each element; the same, of which an even number is
//                                set; or one for all, that moves the levels (IQ1)
//   eight(u, n), eight_of(block, n)   the codes of eight n of a unit, and of a block: nibbles of a word
//   put(block, n, index, second, signs), put_step(block, j, number), put_half(block, bits)
//                                eight n, its second index with kWide 4; the number of step(j), which is 2 number + 1;
//                                the half; into zeroed bits
//   kSteps, top()                how many steps there are; the largest level times unit()
//
// Encoder "plain", this library's: a sub-block's step is what makes its largest magnitude the largest level, rounded to
// those that there are; an eight becomes the vector of least squared distance under it, the first of equals. Where
// signs must be even and are not, that of the element of least magnitude, the first of equals, is turned.
#pragma once
#include "formats/shared/levels.cuh"

namespace tw::fmt {

enum class GridSigns { each, even, one };

TW_FN u32 read32(const u8* p) { return read16(p) | static_cast<u32>(read16(p + 2)) << 16; }

// Four fields of two bits, and four bits, as nibbles.
TW_FN u32 pairs_to_nibbles(u32 byte) {
  const u32 halves = (byte | (byte << 4)) & 0x0f0fu;
  return (halves | (halves << 2)) & 0x3333u;
}
TW_FN u32 bits_to_nibbles(u32 bits) {
  const u32 pairs = (bits | (bits << 6)) & 0x0303u;
  return (pairs | (pairs << 3)) & 0x1111u;
}
TW_FN u32 eight_bits_to_nibbles(u32 bits) { return bits_to_nibbles(bits & 15u) | bits_to_nibbles(bits >> 4) << 16; }
TW_FN u32 eight_pairs_to_nibbles(u32 entry) {
  return pairs_to_nibbles(entry & 255u) | pairs_to_nibbles(entry >> 8) << 16;
}
// Seven signs, and the one that makes their number even.
TW_FN u32 even_signs(u32 seven) { return seven | (static_cast<u32>(popcount(seven)) & 1u) << 7; }
TW_FN void add_bits(u8* p, u32 bits) { *p = static_cast<u8>(*p | bits); }

// Of the last entry of F's list that is not above `entry`; of the first, if all are.
template <class F>
TW_FN u32 list_index(u32 entry) {
  u32 first = 0, last = F::kEntries;
  while (first + 1 < last) {
    const u32 middle = (first + last) / 2;
    (F::grid(middle) <= entry ? first : last) = middle;
  }
  return first;
}

// Tiles hold codes of four bits in place of indices; these are found in the list again.
template <class F>
struct GridTileBase {
  TW_CONSTANTS(int, kBytes = F::kDataBytes);
  TW_MEMBER static constexpr float unit() { return F::unit(); }
  TW_MEMBER static u32 code(const u8* block, int i) { return F::nibble(block, i); }
  TW_MEMBER static void put_eight(u8* block, int n, u32 nibbles) { F::put_eight(block, n, nibbles); }
  TW_MEMBER static u16 half(const u8* block) { return static_cast<u16>(F::half_of(block)); }
  TW_MEMBER static void put_half(u8* block, u16 bits) { F::put_half(block, bits); }
  // Of sixteen; where sub-blocks have 32 elements two are the same.
  TW_MEMBER static i8 scale(const u8* block, int j) { return static_cast<i8>(F::step(block, 16 * j / F::kGroup)); }
  TW_MEMBER static void put_scale(u8* block, int j, i8 scale) {
    F::put_step(block, 16 * j / F::kGroup, (static_cast<u32>(scale) - 1) / 2);
  }
};
template <class Element, class F>
struct GridTile : LevelsSixteens<Element, GridTileBase<F>, typename F::Levels> {};

template <class F, int block_bytes, int size>
struct GridBlocks : PartBlocks<F, block_bytes, size> {
  template <int E>
  using Unit = typename PartBlocks<F, block_bytes, size>::template Unit<E>;
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "plain"; }
  // An element may be at the other end of the levels where no vector of the list is near, or its sign was turned.
  static constexpr Error error(int) {
    const double most = static_cast<double>(F::top()) * (2 * F::kSteps - 1);
    return {0, 1.25, 0, 1.0 / (2 * F::kSteps - 1), most * half_least(), static_cast<float>(most) * largest_half()};
  }
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = GridTile<Element, F>;

  TW_MEMBER static u32 nibble(const u8* block, int i) { return (F::eight_of(block, i / 8) >> (4 * (i % 8))) & 15u; }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[size / 4], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < size / 8; ++i) {
      const u32 eight = F::eight(u, size / 8 * g + i);
      codes[2 * i] = F::Levels::bytes(eight & 0xffffu), codes[2 * i + 1] = F::Levels::bytes(eight >> 16);
    }
    scale = F::scale_of(u, g);
    offset = 0.0f;
  }

  // The inverse of eight_of(), into zeroed bits.
  TW_MEMBER static void put_eight(u8* block, int n, u32 nibbles) {
    constexpr int kWide = F::kWide, kBits = 16 / kWide, kSign = kWide == 4 ? 3 : 2;
    u32 entries[2] = {0, 0}, signs = 0;
    for (int i = 0; i < 8; ++i) {
      const u32 code = (nibbles >> (4 * i)) & 15u;
      entries[i / kWide] |= (code & ((1u << kSign) - 1)) << (kBits * (i % kWide));
      signs |= (code >> kSign) << i;
    }
    F::put(block, n, list_index<F>(entries[0]), kWide == 4 ? list_index<F>(entries[1]) : 0u,
           F::signs() == GridSigns::one ? signs & 1u : signs);
  }

  // The squared distances of four values from the levels that each code may name, the first `codes` of `from`.
  template <int codes>
  struct Distances {
    float of[4][codes];
    TW_MEMBER Distances(const float* v, u32 from) {
      for (int i = 0; i < 4; ++i)
        for (int c = 0; c < codes; ++c) {
          const float d = sub_rn(v[i], static_cast<float>(F::Levels::level(from + static_cast<u32>(c))));
          of[i][c] = mul_rn(d, d);
        }
    }
    TW_MEMBER float sum(u32 entry, int bits) const {
      float total = 0.0f;
      for (int i = 0; i < 4; ++i) total = add_rn(total, of[i][(entry >> (bits * i)) & (codes - 1)]);
      return total;
    }
  };
  struct Nearest {
    u32 index;
    float error;
  };
  // The vector nearest to v, four or eight elements, of levels from code `from` on.
  TW_MEMBER static Nearest nearest(const float* v, u32 from) {
    Nearest best{0, 0.0f};
    if constexpr (F::kWide == 4) {
      const Distances<8> four(v, from);
      for (u32 i = 0; i < F::kEntries; ++i) {
        const float error = four.sum(F::grid(i), 4);
        if (i == 0 || error < best.error) best = {i, error};
      }
    } else {
      const Distances<4> low(v, from), high(v + 4, from);
      float halves[2][256];
      for (u32 byte = 0; byte < 256; ++byte)
        if ((byte & byte >> 1 & 0x55u) == 0) halves[0][byte] = low.sum(byte, 2), halves[1][byte] = high.sum(byte, 2);
      for (u32 i = 0; i < F::kEntries; ++i) {
        const float error = add_rn(halves[0][F::grid(i) & 255u], halves[1][F::grid(i) >> 8]);
        if (i == 0 || error < best.error) best = {i, error};
      }
    }
    return best;
  }
  // Eight n: v, in units of the step.
  TW_MEMBER static void encode_signed(float (&v)[8], u8* data, int n) {
    u32 signs = 0;
    int least = 0;
    for (int i = 0; i < 8; ++i) {
      if (v[i] < 0.0f) signs |= 1u << i;
      v[i] = abs_f(v[i]);
      if (v[i] < v[least]) least = i;
    }
    if (F::signs() == GridSigns::even && popcount(signs) % 2 != 0) signs ^= 1u << least, v[least] = -v[least];
    F::put(data, n, nearest(v, 0).index, F::kWide == 4 ? nearest(v + 4, 0).index : 0u, signs);
  }
  // Eights n to n + count - 1 with one sign for all.
  template <int count>
  TW_MEMBER static void encode_moved(const float (&v)[8 * count], u8* data, int n) {
    Nearest best[2][count];
    float error[2];
    for (u32 sign = 0; sign < 2; ++sign) {
      error[sign] = 0.0f;
      for (int i = 0; i < count; ++i)
        best[sign][i] = nearest(v + 8 * i, 4 * sign), error[sign] = add_rn(error[sign], best[sign][i].error);
    }
    const u32 sign = error[1] < error[0] ? 1u : 0u;
    for (int i = 0; i < count; ++i) F::put(data, n + i, best[sign][i].index, 0, sign);
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    constexpr int kSubs = 256 / size;
    constexpr float kMost = static_cast<float>(2 * F::kSteps - 1);
    float largest[kSubs], most = 0.0f;
    for (int j = 0; j < kSubs; ++j) {
      largest[j] = 0.0f;
      for (int i = 0; i < size; ++i)
        if (abs_f(x[size * j + i]) > largest[j]) largest[j] = abs_f(x[size * j + i]);
      most = max2(most, largest[j]);
    }
    for (int i = 0; i < block_bytes; ++i) data[i] = 0;
    const u16 half = f32_to_f16_bits(div_rn(most, mul_rn(F::top(), kMost)));
    F::put_half(data, half);
    TW_NO_UNROLL for (int j = 0; j < kSubs; ++j) {
      const float steps = most > 0.0f ? mul_rn(kMost, div_rn(largest[j], most)) : 0.0f;
      const i32 number = clamped(mul_rn(sub_rn(steps, 1.0f), 0.5f), 0, F::kSteps - 1);
      F::put_step(data, j, static_cast<u32>(number));
      const float step = mul_rn(mul_rn(f16_bits_to_f32(half), static_cast<float>(2 * number + 1)), F::unit());
      float v[size];
      for (int i = 0; i < size; ++i) {
        v[i] = div_rn(x[size * j + i], step);
        if (!(step > 0.0f) || is_nan(v[i])) v[i] = 0.0f;
      }
      if constexpr (F::signs() == GridSigns::one) {
        encode_one_sign(v, data, j);
      } else {
        for (int n = 0; n < size / 8; ++n) {
          float eight[8];
          for (int i = 0; i < 8; ++i) eight[i] = v[8 * n + i];
          encode_signed(eight, data, size / 8 * j + n);
        }
      }
    }
  }
  // F::kTogether eights have one sign.
  TW_MEMBER static void encode_one_sign(const float (&v)[size], u8* data, int j) {
    constexpr int kTogether = F::kTogether;
    for (int n = 0; n < size / 8; n += kTogether) {
      float some[8 * kTogether];
      for (int i = 0; i < 8 * kTogether; ++i) some[i] = v[8 * n + i];
      encode_moved<kTogether>(some, data, size / 8 * j + n);
    }
  }
};

}  // namespace tw::fmt
