// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a single.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

struct bf16 : Plain<tw::bf16, 16> {
  static constexpr const char* title() { return "bfloat16: the upper half of a single"; }
  static constexpr const char* source() { return "Google Brain; the upper half of IEEE single precision"; }
  static constexpr const char* encoder_name(int) { return "rne"; }
};

}  // namespace tw::fmt
