// SPDX-License-Identifier: Apache-2.0
// E5M2 elements with one float scale G for the tensor, read from device memory: G = amax / 57344 (1 if that is 0),
// element = nearest even of x / G, saturating; value = element * G.
#pragma once
#include "formats/shared/byte_elements.cuh"

namespace tw::fmt {

struct e5m2_tensor : TensorScaled<ByteElements<tw::e5m2>> {
  static constexpr const char* title() { return "FP8 E5M2, one float scale per tensor"; }
  static constexpr const char* source() { return "the usual amax scaling (Transformer Engine)"; }
  static constexpr const char* encoder_name(int) { return "amax57344"; }
  TW_MEMBER static float global_scale(float amax) { return scale_for(amax, 57344.0f); }
};

}  // namespace tw::fmt
