// SPDX-License-Identifier: Apache-2.0
// Symmetric 4-bit codes in groups of 32 along a row, as compressed-tensors' pack-quantized weights (pack_quantized.py)
// pack them: the codes of a row are the nibbles of its little-endian int32 words, lowest first, each v + 8;
// value = (code - 8) scale, one half-precision scale per group.
// Encoder "amax7": scale = half(amax / 7); code = 8 + nearest even of x / scale, clamped to 1..15; scale 0 and codes 8
// for zeros. "compressed_tensors": amax / 7.5, codes 0..15.
#pragma once
#include "formats/shared/int4.cuh"

namespace tw::fmt {

struct int4_g32 : Int4Groups<32> {
  static constexpr const char* title() { return "4-bit codes minus 8, one half scale per 32 (compressed-tensors)"; }
  static constexpr const char* source() {
    return "compressed-tensors (pack_quantized.py, helpers.py); amax7: this library";
  }
};

}  // namespace tw::fmt
