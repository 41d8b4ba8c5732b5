// SPDX-License-Identifier: Apache-2.0
// E8M0 scales (OCP Microscaling Formats v1.0): X = 2^(code - 127), 255: NaN.
#pragma once
#include "core/numeric.cuh"
#include "core/ptx.cuh"

namespace tw::fmt {

// Section 6.3: code - 127 = floor(log2 amax) - emax, at least -127, emax being the exponent of the element's largest power of
// two; 0 for zeros, 255 if an element is infinite.
TW_FN u8 e8m0_of(float amax, int emax) {
  const i32 exponent = static_cast<i32>(bits_as<u32>(amax) >> 23);
  return static_cast<u8>(exponent == 255 ? 255 : max2(exponent - emax, 0));
}
// 1 / X; what X = NaN leaves of an element does not matter.
TW_FN float e8m0_inverse(u8 code) { return bits_as<float>(static_cast<u32>(code == 255 ? 0 : 254 - code) << 23); }
// X, and NaN for 255: an infinity plus 0 times itself.
TW_FN float e8m0_to_f32(u32 code) {
  const float v = bits_as<float>(max2(code << 23, 0x00400000u));
  return fma_rn(v, 0.0f, v);
}

}  // namespace tw::fmt
