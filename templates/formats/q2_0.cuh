// SPDX-License-Identifier: Apache-2.0
// Q2_0 as ggml defines it (ggml-common.h, ggml-quants.c): 64 elements in 18 bytes, a half d and codes of two bits;
// value = d (code - 1). Encoder "ggml": d is the largest magnitude, codes 1 + x / d, half away from zero, so that it
// writes no code 3.
#pragma once
#include "formats/shared/ordered_blocks.cuh"

namespace tw::fmt {

struct q2_0 : OrderedBlocks<q2_0, 64, 2> {
  static constexpr const char* title() { return "ggml Q2_0: codes -1 to 2 in two bits, one half per 64"; }
  static constexpr const char* source() { return "ggml (block_q2_0, quantize_row_q2_0_ref)"; }
  static constexpr Error error(int) { return {0, 0.5 + half_rounding(), 0, 0, half_least(), largest_half()}; }

  TW_MEMBER static i32 step(u32 code) { return static_cast<i32>(code) - 1; }
  TW_MEMBER static void bytes(u32 word, u32* codes) { two_bits_less_one(word, codes); }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    float largest = 0.0f;
    for (int i = 0; i < kBlock; ++i)
      if (abs_f(x[i]) > largest) largest = abs_f(x[i]);
    const float inverse = inverse_of(largest);
    write16(data, f32_to_f16_bits(largest));
    for (int i = 2; i < kDataBytes; ++i) data[i] = 0;
    for (int i = 0; i < kBlock; ++i)
      put_stored(data, i, static_cast<u32>(max2(0, min2(3, to_int_away(mul_rn(x[i], inverse)) + 1))));
  }
};

}  // namespace tw::fmt
