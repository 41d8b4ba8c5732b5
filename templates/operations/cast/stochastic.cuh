// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding of a value that the nearest encoder has encoded: the code stays, or becomes the next one on the
// value's other side, with the probability that makes the expected value the value itself. Random numbers are a
// function of the seed and of the element's index, so that host and device, and kernels of any layout, give the same
// bits.
#pragma once
#include "formats/shared/format.cuh"

namespace tw {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011): `words` is the
// counter, and becomes four random words.
TW_FN void philox(u32 (&words)[4], u32 key0, u32 key1) {
  TW_UNROLL for (int round = 0; round < 10; ++round) {
    const u64 a = static_cast<u64>(words[0]) * 0xd2511f53u, b = static_cast<u64>(words[2]) * 0xcd9e8d57u;
    const u32 w1 = words[1], w3 = words[3];
    words[0] = static_cast<u32>(b >> 32) ^ w1 ^ key0, words[1] = static_cast<u32>(b);
    words[2] = static_cast<u32>(a >> 32) ^ w3 ^ key1, words[3] = static_cast<u32>(a);
    key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
  }
}
// Of elements 4 n to 4 n + 3.
TW_FN void random_words(u32 (&words)[4], i64 n, u64 seed) {
  words[0] = static_cast<u32>(n), words[1] = static_cast<u32>(static_cast<u64>(n) >> 32), words[2] = words[3] = 0;
  philox(words, static_cast<u32>(seed), static_cast<u32>(seed >> 32));
}

}  // namespace tw

namespace tw::fmt {

template <class F, class = void>
struct HasSteps {
  TW_CONSTANTS(bool, value = false);
};
template <class F>
struct HasSteps<F, void_of<decltype(F::steps(0))>> {  // not with a zero point: an item has the sum of its row's codes
  TW_CONSTANTS(bool, value = F::steps(0).bits > 0 && !has_zero_point<F>());
};

// The next code above or below; the same one where there is none, or where it is a NaN's. negative: the sign of a zero.
TW_FN u32 next_code(const CodeSteps& s, u32 code, bool up, bool negative) {
  const u32 sign = 1u << (s.bits - 1);
  i32 at = static_cast<i32>(code);
  if (s.sign_magnitude)
    at = code & sign ? -static_cast<i32>(code & (sign - 1)) : at;
  else if (s.bits == 8)
    at = static_cast<i8>(code);
  const i32 next = at + (up ? 1 : -1);
  if (at < s.low || at > s.high || next < s.low || next > s.high) return code;
  if (!s.sign_magnitude) return static_cast<u32>(next) & (2 * sign - 1);
  return next < 0 || (next == 0 && negative) ? sign | static_cast<u32>(-next) : static_cast<u32>(next);
}

// Element i of a block that F's encoder made of v and its neighbours. random: a word for this element.
template <class F>
TW_FN void round_stochastically(u8* data, const u8* scales, const row_item<F>& context, int i, float v, u32 random,
                                int encoder) {
  const CodeSteps s = F::steps(encoder);
  constexpr int kPerByte = 8 / F::steps(0).bits;
  const int at = i / kPerByte, shift = kPerByte == 2 ? 4 * (i % 2) : 0;
  const u32 mask = kPerByte == 2 ? 15u : 255u;
  const u8 was = data[at];
  const u32 code = (was >> shift) & mask;
  const float near = F::decode(data, scales, context, i);
  if (v == near) return;
  const u32 other = next_code(s, code, v > near, v < 0.0f);
  if (other == code) return;
  data[at] = static_cast<u8>((was & ~(mask << shift)) | (other << shift));
  const float far = F::decode(data, scales, context, i);
  // No number, where a scale or v is none.
  const float share = div_rn(sub_rn(v, near), sub_rn(far, near));
  constexpr float kUlp = 5.9604644775390625e-8f;  // 2^-24
  if (far == near || !(static_cast<float>(random >> 8) * kUlp < share)) data[at] = was;
}

}  // namespace tw::fmt
