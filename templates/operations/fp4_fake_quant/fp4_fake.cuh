// SPDX-License-Identifier: Apache-2.0
// FP4 fake quantization: a value as an E2M1 code under its block's scale would hold it. That scale is E4M3 times one of
// the tensor, as in NVFP4, but for any size of block, with a least scale, and with the products that NVIDIA Model
// Optimizer's convolution has instead of quotients.
#pragma once
#include "backends/cuda/numeric.cuh"

namespace tw {

// The scales of blocks in a tensor of largest magnitude `amax`, or which is to be clipped to that.
//   g = amax / (6 * 448), scale = e4m3(largest / (6 g)) g, saturating
// `largest` is a block's largest magnitude, NaNs passed over. The scale is 1 instead where that is below 1e-5 or no
// number, and where amax is not positive and finite.
struct Fp4Scales {
  float g;
  TW_MEMBER explicit Fp4Scales(float amax) {
    constexpr float kLargestFloat = 3.4028234663852886e38f;
    g = amax > 0.0f && amax <= kLargestFloat ? div_rn(amax, 2688.0f) : 0.0f;
  }
  TW_MEMBER float of_block(float largest) const {
    const float scale = mul_rn(e4m3_to_f32(f32_to_e4m3(div_rn(largest, mul_rn(6.0f, g)))), g);
    return scale >= 1e-5f ? scale : 1.0f;
  }
};

// `inverse`: 1 / scale, rounded. A NaN becomes -6 scales, and a negative zero a positive one.
TW_FN float fp4_fake(float x, float scale, float inverse) {
  const float q = e2m1_rounded(mul_rn(abs_f(x), inverse));
  return mul_rn(x >= 0.0f ? q : -q, scale);
}

}  // namespace tw
