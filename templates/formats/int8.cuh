// SPDX-License-Identifier: Apache-2.0
// Signed bytes without a scale of its own: that is a gemm's alpha (of x and w) or y_scale. Nearest even, saturating at
// -128 and 127; NaN gives 0.
#pragma once
#include "formats/shared/byte_elements.cuh"

namespace tw::fmt {

struct int8 : ByteElements<tw::i8> {
  static constexpr const char* title() { return "signed bytes, no scale"; }
  static constexpr const char* source() { return "two's complement; ONNX QuantizeLinear without zero point"; }
  static constexpr const char* encoder_name(int) { return "rne"; }
};

}  // namespace tw::fmt
