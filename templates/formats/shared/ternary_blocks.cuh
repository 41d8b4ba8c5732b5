// SPDX-License-Identifier: Apache-2.0
// Shared by ggml's formats of -1, 0 and 1 under one half d per 256 elements. Encoder "ggml": d is the largest
// magnitude, codes 1 + x / d, half away from zero.
#pragma once
#include "formats/shared/levels.cuh"

namespace tw::fmt {

template <class F, int block_bytes>
struct TernaryBlocks : PartBlocks<F, block_bytes, 32> {
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 1, kBits = 2);
  TW_CONSTANTS(int, kErrorColumns = 256, kHalf = block_bytes - 2);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  static constexpr Error error(int) { return {0, 0.5 + half_rounding(), 0, 0, half_least(), largest_half()}; }

  using Levels = Sixteen<0x020100ffu, 0, 0, 0>;
  TW_MEMBER static constexpr float unit() { return 1.0f; }
  TW_MEMBER static i32 step(const u8*, int) { return 1; }
  TW_MEMBER static u32 half_of(const u8* block) { return read16(block + kHalf); }
  struct Code {
    float inverse;
    TW_MEMBER u32 of(float v) const { return static_cast<u32>(max2(0, min2(2, to_int_away(mul_rn(v, inverse)) + 1))); }
  };
  // Writes d.
  TW_MEMBER static Code code_of(const float* x, u8* data) {
    float largest = 0.0f;
    for (int i = 0; i < 256; ++i)
      if (abs_f(x[i]) > largest) largest = abs_f(x[i]);
    write16(data + kHalf, f32_to_f16_bits(largest));
    return {largest != 0.0f ? div_rn(1.0f, largest) : 0.0f};
  }
  // Bytes of 0, 1 and 2, one less.
  TW_MEMBER static u32 less_one(u32 bytes) { return ((bytes | 0x80808080u) - 0x01010101u) ^ 0x80808080u; }
};

}  // namespace tw::fmt
