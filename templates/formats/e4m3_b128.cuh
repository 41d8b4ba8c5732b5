// SPDX-License-Identifier: Apache-2.0
// FP8 E4M3 in blocks of 128 x 128, for weights, as DeepSeek-V3's checkpoints have them: stream `scales` is a row-major
// matrix of one float per block, ceil(rows / 128) by columns / 128 (their weight_scale_inv;
// formats/shared/e4m3_blocks.cuh).
#pragma once
#include "formats/shared/e4m3_blocks.cuh"

namespace tw::fmt {

struct e4m3_b128 : E4m3Blocks {
  static constexpr const char* title() { return "FP8 E4M3, one float scale per 128 rows x 128 columns; for weights"; }
  static constexpr const char* source() { return "DeepSeek-V3's checkpoints (weight_scale_inv)"; }
  TW_CONSTANTS(int, kScaleRows = 128);

  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int) {
    encode_with(x, data, read_scale(scales));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a scale is of several rows
};

}  // namespace tw::fmt
