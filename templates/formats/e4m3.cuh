// SPDX-License-Identifier: Apache-2.0
// FP8 E4M3 without a scale of its own: that is a gemm's alpha (of x and w) or y_scale. Nearest even, saturating at 448;
// NaN stays one.
#pragma once
#include "formats/shared/byte_elements.cuh"

namespace tw::fmt {

struct e4m3 : ByteElements<tw::e4m3> {
  static constexpr const char* title() { return "FP8 E4M3, no scale"; }
  static constexpr const char* source() { return "arXiv 2209.05433; saturating as CUDA does"; }
  static constexpr const char* encoder_name(int) { return "rne"; }
};

}  // namespace tw::fmt
