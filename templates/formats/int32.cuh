// SPDX-License-Identifier: Apache-2.0
// 32-bit integers: exact sums of products of bytes, and what is added to them. Decoded to the nearest float; encoded
// nearest even, saturating; NaN gives 0.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

struct int32 : Plain<tw::i32, 32> {
  static constexpr const char* title() { return "32-bit integers"; }
  static constexpr const char* source() { return "two's complement"; }
  static constexpr const char* encoder_name(int) { return "rne"; }
};

}  // namespace tw::fmt
