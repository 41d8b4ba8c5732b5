// SPDX-License-Identifier: Apache-2.0
// IEEE half precision.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

struct f16 : Plain<tw::f16, 16> {
  static constexpr const char* title() { return "IEEE half precision"; }
  static constexpr const char* source() { return "IEEE 754"; }
  static constexpr const char* encoder_name(int) { return "rne"; }
};

}  // namespace tw::fmt
