// SPDX-License-Identifier: Apache-2.0
// E4M3 elements with one float scale G for the tensor, read from device memory: G = amax / 448 (1 if that is 0),
// element = nearest even of x / G, saturating; value = element * G.
#pragma once
#include "formats/shared/byte_elements.cuh"

namespace tw::fmt {

struct e4m3_tensor : TensorScaled<ByteElements<tw::e4m3>> {
  static constexpr const char* title() { return "FP8 E4M3, one float scale per tensor"; }
  static constexpr const char* source() { return "the usual amax scaling (Transformer Engine)"; }
  static constexpr const char* encoder_name(int) { return "amax448"; }
  TW_MEMBER static float global_scale(float amax) { return scale_for(amax, 448.0f); }
};

}  // namespace tw::fmt
