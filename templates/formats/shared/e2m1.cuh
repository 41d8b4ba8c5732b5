// SPDX-License-Identifier: Apache-2.0
// E2M1 codes as integers.
#pragma once
#include "backends/cuda/numeric.cuh"
#include "backends/cuda/ptx.cuh"

namespace tw::fmt {

// Twice the E2M1 value is an integer: 0 1 2 3 4 6 8 12. A permute looks four of them up at once.
TW_DEVICE u32 e2m1_twice(u32 nibbles) {
  const u32 index = nibbles & 0x7777u;
  const u32 positive = prmt(0x03020100u, 0x0c080604u, index);
  const u32 negative = prmt(0xfdfeff00u, 0xf4f8fafcu, index);
  const u32 mask = prmt(0x0000ff00u, 0u, (nibbles >> 3) & 0x1111u);
  return (positive & ~mask) | (negative & mask);
}
// The eight nibbles of a word so, as signed bytes in order.
TW_DEVICE void e2m1_bytes(u32 word, u32& first, u32& second) {
  first = e2m1_twice(word & 0xffffu), second = e2m1_twice(word >> 16);
}

// The signs of N elements where a word of their codes has them. Each is the highest bit of a byte: those of odd
// elements in place when the bytes lie side by side, those of even ones four bits above it.
template <int N>
TW_DEVICE u32 e2m1_signs(const float* v) {
  static_assert(N == 4 || N == 8, "half a word or a word");
  u32 bytes[2];
  TW_UNROLL for (int odd = 0; odd < 2; ++odd) {
    const auto pair = [&](int i) { return prmt(bits_as<u32>(v[i + odd]), bits_as<u32>(v[i + 2 + odd]), 0x73u); };
    bytes[odd] = N == 8 ? prmt(pair(0), pair(4 % N), 0x5410u) : pair(0) & 0xffffu;
  }
  return (bytes[1] & 0x80808080u) | ((bytes[0] >> 4) & 0x08080808u);
}

// Codes of v[i] / by, eight of E in a word, the first lowest. A lane whose elements and divisor are not quite ordinary
// takes E divisions; the others round by additions. A code is the least of what its magnitude is in steps of 1/2, of
// 1 from 2 on and of 2 from 4 on, and numbers of steps are what an addition to 3 2^22 leaves in the lowest bits.
// `largest`: of the lane's |v|, NaN if one is.
template <int E>
TW_DEVICE void e2m1_codes(u32 (&words)[ceil_div(E, 8)], const float (&v)[E], const Divider& by, float largest) {
  constexpr int kWords = ceil_div(E, 8), kIn = E < 8 ? E : 8;
  TW_UNROLL for (int w = 0; w < kWords; ++w) words[w] = 0;
  if (by.direct && by.quotient_unsigned(largest) < 6.5f) {  // not a NaN
    constexpr float kInteger = 12582912.0f;                 // 3 2^22
    TW_UNROLL for (int i = 0; i < E; ++i) {
      const float q = by.quotient_unsigned(abs_f(v[i]));
      const float halves = fma_rn(q, 2.0f, kInteger), ones = add_rn(q, kInteger + 2.0f),
                  twos = fma_rn(q, 0.5f, kInteger + 4.0f);
      const u32 code = bits_as<u32>(min_number(min_number(halves, ones), twos));
      words[i / 8] += code << (4 * (i % 8));  // with the bits of 3 2^22, which are taken away at once below
    }
    u32 more = 0;
    TW_UNROLL for (int i = 0; i < kIn; ++i) more += 0x4b400000u << (4 * i);
    TW_UNROLL for (int w = 0; w < kWords; ++w) words[w] = (words[w] - more) | e2m1_signs<kIn>(v + 8 * w);
  } else {
    // Rare, and a division is long: one in the text, to which the elements come in turn.
    float turn[E];
    TW_UNROLL for (int i = 0; i < E; ++i) turn[i] = v[i];
    TW_NO_UNROLL for (int n = 0; n < E; ++n) {
      const u32 code = f32_to_e2m1(div_rn(turn[0], by.divisor));
      TW_UNROLL for (int i = 0; i + 1 < E; ++i) turn[i] = turn[i + 1];
      TW_UNROLL for (int w = 0; w < kWords; ++w)  // through the words
          words[w] = words[w] >> 4 | (w + 1 < kWords ? words[(w + 1) % kWords] : code) << 28;
    }
    if constexpr (E < 8) words[0] >>= 32 - 4 * E;
  }
}

}  // namespace tw::fmt
