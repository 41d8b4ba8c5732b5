// SPDX-License-Identifier: Apache-2.0
// TQ1_0 as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 54 bytes: five digits to the base 3 a byte,
// but for the last four bytes, which have four and a zero, and a half d. Byte l of the first 32 has elements 32 t + l,
// byte 32 + l of the next 16 elements 160 + 16 t + l, byte 48 + l of the last 4 elements 240 + 4 t + l, t = 0 the
// highest digit; the byte is 256 / 243 times the number, rounded up, so that digit t is the integer part of 3 times the
// fraction of 3^t byte / 256. value = d (digit - 1). Encoder: formats/shared/ternary_blocks.cuh.
#pragma once
#include "formats/shared/ternary_blocks.cuh"

namespace tw::fmt {

struct tq1_0 : TernaryBlocks<tq1_0, 54> {
  static constexpr const char* title() { return "ggml TQ1_0: codes -1, 0 and 1, five a byte, one half per 256"; }
  static constexpr const char* source() { return "ggml (block_tq1_0, quantize_row_tq1_0_ref)"; }

  struct Digit {
    int byte, number;
  };
  TW_MEMBER static Digit digit_of(int i) {
    if (i < 160) return {i % 32, i / 32};
    if (i < 240) return {32 + i % 16, (i - 160) / 16};
    return {48 + i % 4, (i - 240) / 4};
  }
  TW_MEMBER static constexpr u32 power(int t) { return t == 0 ? 1 : t == 1 ? 3 : t == 2 ? 9 : t == 3 ? 27 : 81; }
  TW_MEMBER static u32 nibble(const u8* block, int i) {
    const Digit digit = digit_of(i);
    return (((block[digit.byte] * power(digit.number)) & 255u) * 3) >> 8;
  }
  struct TileBase : HalfAt<54, 52> {
    TW_MEMBER static u32 code(const u8* block, int i) { return nibble(block, i); }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      const Digit digit = digit_of(i);
      const u32 number = (block[digit.byte] * 243u >> 8) + code * (power(4) / power(digit.number));
      block[digit.byte] = static_cast<u8>((number * 256 + 242) / 243);
    }
    TW_MEMBER static i8 scale(const u8*, int) { return 1; }
    TW_MEMBER static void put_scale(u8*, int, i8) {}
  };
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int i = 0; i < 52; ++i) data[i] = 0;
    const Code code = code_of(x, data);
    for (int i = 0; i < 256; ++i) TileBase::put_code(data, i, code.of(x[i]));
  }

  TW_CONSTANTS(int, kParts = 2);
  TW_MEMBER static constexpr Part part(int p) { return p == 0 ? Part{0, 0, 0, 52} : Part{52, 0, 0, 2}; }
  // Digit t of the bytes of a word, given 3^t, one less.
  TW_MEMBER static u32 digits(u32 word, u32 power) {
    const u32 even = (word & 0x00ff00ffu) * power & 0x00ff00ffu,
              odd = ((word >> 8) & 0x00ff00ffu) * power & 0x00ff00ffu;
    return less_one(((even * 3) >> 8 & 0x00030003u) | (odd * 3 & 0x03000300u));
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const int j = u.first + g;  // of 32s: the first five are of 32 bytes, then there are sixteens
    TW_UNROLL for (int i = 0; i < 8; ++i) {
      const int sixteen = 2 * (j - 5) + i / 4;
      const bool tail = j == 7 && i >= 4;
      const u32 word = j < 5 ? u.word(0, i) : tail ? u.word(0, 12) : u.word(0, 8 + i % 4);
      codes[i] = digits(word, power(j < 5 ? j : tail ? i - 4 : sixteen));
    }
    scale = f16_bits_to_f32(static_cast<u16>(u.two(1, 0)));
    offset = 0.0f;
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = SixteensTile<Element, TileBase, 2, 1>;
};

}  // namespace tw::fmt
