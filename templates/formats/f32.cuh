// SPDX-License-Identifier: Apache-2.0
// IEEE single precision.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

struct f32 : Plain<float, 32> {
  static constexpr const char* title() { return "IEEE single precision"; }
  static constexpr const char* source() { return "IEEE 754"; }
  static constexpr const char* encoder_name(int) { return "rne"; }
};

}  // namespace tw::fmt
