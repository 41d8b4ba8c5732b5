// SPDX-License-Identifier: Apache-2.0
// E2M1 codes as ggml chooses and packs them: sixteen or thirty-two of them to a scale, the first half in the lower
// nibbles of as many bytes, the second in the upper ones.
#pragma once
#include "core/e2m1.cuh"
#include "core/numeric.cuh"

namespace tw::fmt {

// The code whose value under `scale` is nearest to x, of two as near the smaller one, and never -0 (ggml's
// best_index_mxfp4). An infinity is the largest; a NaN, to which nothing is near, 0.
TW_FN u32 nearest_e2m1(float x, float scale) {
  const float magnitude = abs_f(x);
  u32 best = magnitude > 3.4028234663852886e38f ? 7 : 0;
  float least = magnitude;
  for (u32 code = 1; code < 8; ++code) {
    const float error = abs_f(add_rn(mul_rn(e2m1_to_f32(code), scale), -magnitude));
    if (error < least) best = code, least = error;
  }
  return best > 0 && x < 0.0f ? best | 8u : best;
}

// Element i of codes whose halves have `half` elements each.
TW_FN u32 half_code(const u8* codes, int half, int i) { return (codes[i % half] >> (i < half ? 0 : 4)) & 15u; }
TW_FN void put_half_code(u8* codes, int half, int i, u32 code) {
  codes[i % half] |= static_cast<u8>(code << (i < half ? 0 : 4));
}

// The lower nibbles of a word's bytes, as e2m1_twice().
TW_DEVICE u32 e2m1_lower_twice(u32 word) {
  u32 nibbles = word & 0x0f0f0f0fu;
  nibbles |= nibbles >> 4;
  return e2m1_twice((nibbles & 0xffu) | ((nibbles >> 8) & 0xff00u));
}

}  // namespace tw::fmt
