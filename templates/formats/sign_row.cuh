// SPDX-License-Identifier: Apache-2.0
// Signs with one float scale per row (formats/shared/sign_row.cuh), bit 1 where x >= 0, as in ggml's Q1_0; so a NaN
// becomes -scale. signbit_row has the bits the other way round.
#pragma once
#include "formats/shared/sign_row.cuh"

namespace tw::fmt {

struct sign_row : Signs<0> {
  static constexpr const char* title() { return "signs, bit 1 where x >= 0, one float scale per row"; }
  static constexpr const char* source() {
    return "XNOR-Net (arXiv 1603.05279), alpha the mean magnitude; bits of ggml's Q1_0";
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, const RowItem&, int) {
    u32 byte = 0;
    for (int i = 0; i < kBlock; ++i) byte |= (x[i] >= 0.0f ? 1u : 0u) << i;
    data[0] = static_cast<u8>(byte);
  }
};

}  // namespace tw::fmt
