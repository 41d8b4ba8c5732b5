// SPDX-License-Identifier: Apache-2.0
// FP8 E4M3 in groups of 128 along a row, for activations: stream `scales` has one float per group
// (formats/shared/e4m3_blocks.cuh).
#pragma once
#include "formats/shared/e4m3_blocks.cuh"

namespace tw::fmt {

struct e4m3_g128 : E4m3Blocks {
  static constexpr const char* title() { return "FP8 E4M3, one float scale per 128; for activations"; }
  static constexpr const char* source() { return "DeepSeek-V3's activations (inference/kernel.py)"; }
  TW_CONSTANTS(int, kScaleRows = 1);

  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int) {
    float amax = 0.0f;
    for (int i = 0; i < kBlock; ++i) amax = max2(amax, abs_f(x[i]));
    const float scale = scale_for(amax);
    write_scale(scales, scale);
    encode_with(x, data, scale);
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float, int) {
    const float amax = largest_of<kBlock / E>(v), scale = scale_for(amax);
    if (lane == 0) *reinterpret_cast<float*>(scales) = scale;
    const Divider by(scale, amax);
    u32 codes[E / 4];
    if (by.direct) {
      TW_UNROLL for (int i = 0; i < E / 4; ++i) codes[i] = e4m3_codes<true>(v + 4 * i, by);
    } else {
      TW_UNROLL for (int i = 0; i < E / 4; ++i) codes[i] = e4m3_codes<false>(v + 4 * i, by);
    }
    TW_UNROLL for (int i = 0; i < E / 4; ++i) * reinterpret_cast<u32*>(data + E * lane + 4 * i) = codes[i];
  }
};

}  // namespace tw::fmt
