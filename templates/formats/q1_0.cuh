// SPDX-License-Identifier: Apache-2.0
// Q1_0 as ggml defines it (ggml-common.h, ggml-quants.c): 128 elements in 18 bytes, a half d and a bit each; value = d
// where it is 1, else -d. Encoder "ggml": d is the mean magnitude, added up in order in single precision; a bit is 1
// where x >= 0. A NaN adds nothing, where ggml's d would be NaN.
#pragma once
#include "formats/shared/ordered_blocks.cuh"

namespace tw::fmt {

struct q1_0 : OrderedBlocks<q1_0, 128, 1> {
  static constexpr const char* title() { return "ggml Q1_0: signs, one half per 128"; }
  static constexpr const char* source() { return "ggml (block_q1_0, quantize_row_q1_0_ref)"; }
  static constexpr Error error(int) { return {0, 1 + half_rounding(), 0, 0, half_least(), largest_half()}; }

  TW_MEMBER static i32 step(u32 bit) { return bit ? 1 : -1; }
  TW_MEMBER static void bytes(u32 word, u32* codes) {
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] = ~(bits_to_bytes(word >> (4 * i)) * 0xfeu);
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    float sum = 0.0f;
    for (int i = 0; i < kBlock; ++i) sum = add_rn(sum, x[i] == x[i] ? abs_f(x[i]) : 0.0f);
    write16(data, f32_to_f16_bits(div_rn(sum, static_cast<float>(kBlock))));
    for (int i = 2; i < kDataBytes; ++i) data[i] = 0;
    for (int i = 0; i < kBlock; ++i) put_stored(data, i, x[i] >= 0.0f ? 1u : 0u);
  }
};

}  // namespace tw::fmt
