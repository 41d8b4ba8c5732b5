// SPDX-License-Identifier: Apache-2.0
// What formats with one float scale per row share.
#pragma once
#include "core/format.cuh"

namespace tw::fmt {

// scale = amax / top, 1 for a row of zeros.
TW_FN float scale_for(float amax, float top) {
  const float scale = div_rn(amax, top);
  return scale > 0.0f ? scale : 1.0f;
}

// Two 4-bit codes a byte, even element low.
struct RowNibbles {
  static constexpr int kLayout = 1, kBlock = 2, kBits = 4;
  static constexpr int kDataBytes = 1, kScaleBytes = 0;
  static constexpr bool kRowScale = true, kGlobal = false;
  static constexpr int kEncoders = 1;

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a row is more than a block
  // Kernels do not carry a scale per row beside packed codes.
  static constexpr int kGroup = 0;
  static constexpr bool kCodes = false, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int) { return false; }
};

}  // namespace tw::fmt
