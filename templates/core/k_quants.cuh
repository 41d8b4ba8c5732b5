// SPDX-License-Identifier: Apache-2.0
// What ggml's formats of 256 elements ("K-quants") share here: their plain encoders, and reads of blocks that are only
// two-byte aligned.
//
// The plain encoders do without ggml's search for the best scale of a sub-block. Signed: a sub-block's scale maps its
// extreme (the element of largest magnitude, the first of equals) to the lowest code. With minima: its scale and minimum
// span its range, 0 included from above. Then, as in ggml, those are rounded to integers under one half-precision d (and
// dmin), and the elements' codes are taken against what is stored.
#pragma once
#include "core/format.cuh"

namespace tw::fmt {

TW_FN i32 clamped(float v, i32 low, i32 high) { return max2(low, min2(high, to_int(rint_even(v)))); }

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
    scales[j] = static_cast<i8>(
        most != 0.0f ? clamped(mul_rn(static_cast<float>(-top_scale), div_rn(scale[j], most)), -top_scale, top_scale - 1) : 0);
  store(d, scales);
  for (int j = 0; j < 16; ++j) {
    const float step = mul_rn(f16_bits_to_f32(d), static_cast<float>(scales[j]));
    for (int i = 16 * j; i < 16 * (j + 1); ++i)
      code(i, static_cast<u32>(half + (step != 0.0f ? clamped(div_rn(x[i], step), -half, half - 1) : 0)));
  }
}

// words <- `bytes` (a multiple of two) from an address that is only two-byte aligned, in reads of four. Nothing before the
// word of the first byte or after the last byte is touched.
template <int bytes> TW_DEVICE void load_halves(u32* words, const u8* p) {
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

}  // namespace tw::fmt
