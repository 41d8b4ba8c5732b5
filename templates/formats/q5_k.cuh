// SPDX-License-Identifier: Apache-2.0
// Q5_K as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 176 bytes: half-precision d and dmin, twelve
// bytes of 6-bit (scale, minimum) pairs as in Q4_K, 32 bytes of upper bits and 128 of the lower four; byte 32 p + l of
// those holds element 64 p + l low and 64 p + 32 + l high, bit j of byte l of the upper bits is that of element 32 j +
// l; value = d scale code - dmin minimum. Encoders: "plain" (formats/shared/k_quants.cuh), and "ggml",
// with its search (formats/shared/k_search.cuh).
#pragma once
#include "formats/shared/k_search.cuh"

namespace tw::fmt {

struct q5_k : MinimaBlocks<5> {
  static constexpr const char* title() {
    return "ggml Q5_K: 5-bit codes, 6-bit scales and minima per 32, two halves per 256";
  }
  static constexpr const char* source() { return "ggml (block_q5_K, quantize_row_q5_K_ref); plain: this library"; }
  TW_CONSTANTS(int, kLayout = 2, kEncoders = 2);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "plain" : "ggml"; }
  static constexpr Error error(int i) { return i == 0 ? minima_error(31, 63) : searched_minima_error(31, 63); }

  template <bool searched>
  TW_MEMBER static void encode_by(const float* x, const float* importance, u8* data) {
    for (int i = 16; i < 176; ++i) data[i] = 0;
    const auto store = [&](u16 d, u16 dmin, const u8* scales, const u8* minima) {
      put_header(data, d, dmin, scales, minima);
    };
    const auto put = [&](int i, u32 code) {
      u8& low = data[48 + 32 * (i / 64) + i % 32];
      u8& high = data[16 + i % 32];
      low = static_cast<u8>(low | ((code & 15u) << (4 * (i / 32 % 2))));
      high = static_cast<u8>(high | ((code >> 4) << (i / 32)));
    };
    if constexpr (searched)
      search_with_minima<32, 31, 63>(x, importance, {-0.5f, 0.1f, 15, false}, store, put);
    else
      encode_with_minima<32, 31, 63>(x, store, put);
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int encoder) {
    if (encoder == 0)
      encode_by<false>(x, nullptr, data);
    else
      encode_by<true>(x, nullptr, data);
  }
  TW_CONSTANTS(bool, kImportance = true);
  TW_MEMBER static void encode_weighted(const float* x, const float* importance, u8* data) {
    encode_by<true>(x, importance, data);
  }
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  template <class Element>
  using Tile = MinimaTile<Element, 5>;
};

}  // namespace tw::fmt
