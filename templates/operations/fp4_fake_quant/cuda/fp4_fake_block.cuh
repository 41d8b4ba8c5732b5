// SPDX-License-Identifier: Apache-2.0
// FP4 fake quantization of a block that lies in registers of neighbouring lanes.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "operations/fp4_fake_quant/fp4_fake.cuh"

namespace tw {

// v: this lane's elements of a block that `lanes` neighbouring lanes share. All lanes of a warp have to come.
template <int lanes, int pieces, int elements>
TW_DEVICE void fp4_fake_block(float (&v)[pieces][elements], const Fp4Scales& scales) {
  float largest = 0.0f;
  TW_UNROLL for (int i = 0; i < pieces; ++i) TW_UNROLL for (int e = 0; e < elements; ++e) largest =
      max_number(largest, abs_f(v[i][e]));
  TW_UNROLL for (int d = lanes / 2; d > 0; d /= 2) largest = max_number(largest, shuffle_xor(largest, d));
  const float scale = scales.of_block(largest), inverse = div_rn(1.0f, scale);
  TW_UNROLL for (int i = 0; i < pieces; ++i) TW_UNROLL for (int e = 0; e < elements; ++e) v[i][e] =
      fp4_fake(v[i][e], scale, inverse);
}

}  // namespace tw
