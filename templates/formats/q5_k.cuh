// SPDX-License-Identifier: Apache-2.0
// Q5_K as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 176 bytes: half-precision d and dmin, twelve
// bytes of 6-bit (scale, minimum) pairs as in Q4_K, 32 bytes of upper bits and 128 of the lower four; byte 32 p + l of
// those holds element 64 p + l low and 64 p + 32 + l high, bit j of byte l of the upper bits is that of element 32 j +
// l; value = d scale code - dmin minimum. Encoder "plain" (core/k_quants.cuh): without ggml's search.
#pragma once
#include "core/k_quants.cuh"

namespace tw::fmt {

struct q5_k : MinimaBlocks<5> {
  static constexpr const char* title() {
    return "ggml Q5_K: 5-bit codes, 6-bit scales and minima per 32, two halves per 256";
  }
  static constexpr const char* source() {
    return "layout: ggml (block_q5_K); encoder: this library (templates/core/k_quants.cuh)";
  }
  TW_CONSTANTS(int, kLayout = 2, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "plain"; }
  static constexpr Error error(int) { return minima_error(31, 63); }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int i = 16; i < 176; ++i) data[i] = 0;
    encode_with_minima<32, 31, 63>(
        x,
        [&](u16 d, u16 dmin, const u8* scales, const u8* minima) {
          write16(data, d);
          write16(data + 2, dmin);
          u8* s = data + 4;
          for (int j = 0; j < 4; ++j) {
            s[j] = static_cast<u8>(scales[j] | ((scales[j + 4] >> 4) << 6));
            s[j + 4] = static_cast<u8>(minima[j] | ((minima[j + 4] >> 4) << 6));
            s[j + 8] = static_cast<u8>((scales[j + 4] & 15u) | ((minima[j + 4] & 15u) << 4));
          }
        },
        [&](int i, u32 code) {
          u8& low = data[48 + 32 * (i / 64) + i % 32];
          u8& high = data[16 + i % 32];
          low = static_cast<u8>(low | ((code & 15u) << (4 * (i / 32 % 2))));
          high = static_cast<u8>(high | ((code >> 4) << (i / 32)));
        });
  }
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  template <class Element>
  using Tile = MinimaTile<Element, 5>;
};

}  // namespace tw::fmt
