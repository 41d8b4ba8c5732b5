// SPDX-License-Identifier: Apache-2.0
// Asymmetric 4-bit codes in groups of 32 along a row, as GPTQ (AutoGPTQ quantizer.py, qlinear_cuda_old.py) and AWQ
// choose them, in rows of w[n, k]: value = (code - zero) scale. Stream `data` packs two codes a byte, even element low;
// an item of stream `scales` is the half-precision scale, then the zero point, an integer 0..15, as a half. Encoder
// "minmax": 0 lies in [min, max]; scale = half(max((max - min) / 15, 2^-24)), zero = nearest even of -min / scale, code
// = nearest even of (x + zero scale) / scale, both clamped to 0..15, with the scale as stored.
#pragma once
#include "formats/shared/int4.cuh"

namespace tw::fmt {

struct uint4_g32 : Uint4Groups<32> {
  static constexpr const char* title() { return "4-bit codes, half scale and zero point per 32 (GPTQ, AWQ)"; }
  static constexpr const char* source() { return "GPTQ (AutoGPTQ quantizer.py), AWQ"; }
};

}  // namespace tw::fmt
