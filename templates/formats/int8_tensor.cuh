// SPDX-License-Identifier: Apache-2.0
// Signed bytes with one float scale G for the tensor, read from device memory: G = amax / 127 (1 if that is 0), element
// = nearest even of x / G, saturating; value = element * G.
#pragma once
#include "formats/shared/byte_elements.cuh"

namespace tw::fmt {

struct int8_tensor : TensorScaled<ByteElements<tw::i8>> {
  static constexpr const char* title() { return "8-bit codes, one float scale per tensor"; }
  static constexpr const char* source() { return "the usual amax scaling (Model Optimizer)"; }
  static constexpr const char* encoder_name(int) { return "amax127"; }
  TW_MEMBER static float global_scale(float amax) { return scale_for(amax, 127.0f); }
};

}  // namespace tw::fmt
