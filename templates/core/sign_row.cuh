// SPDX-License-Identifier: Apache-2.0
// Shared by the formats of signs with one float scale per row: eight bits a byte, the first lowest; value = scale or
// -scale. Encoder "absmean": scale = mean |x|, summed in double precision. Zeros, -0 among them, are positive.
#pragma once
#include "core/row_scale.cuh"

namespace tw::fmt {

// bit: what stands for an element below zero.
template <u32 bit>
struct SignRow {
  TW_CONSTANTS(int, kBits = 1);
  TW_MEMBER static constexpr float step() { return 1.0f; }
  // Each bit selects one of two bytes.
  TW_MEMBER static void bytes(u32 word, u32* codes) {
    TW_UNROLL for (int i = 0; i < 8; ++i) {
      const u32 four = (word >> (4 * i)) & 15u, spread = four | (four << 6);
      codes[i] = prmt(bit ? 0xff01u : 0x01ffu, 0u, (spread | (spread << 3)) & 0x1111u);
    }
  }
};

template <u32 bit>
struct Signs : RowCodes<SignRow<bit>> {
  using Base = RowCodes<SignRow<bit>>;
  static constexpr Error error(int) { return {0, 1, 0, 0, least_float()}; }  // a zero, or an element far above the mean
  static constexpr const char* encoder_name(int) { return "absmean"; }
  TW_MEMBER static float row_scale_of_mean(float mean) { return mean; }
  TW_MEMBER static float decode(const u8* data, const u8*, float scale, int i) {
    return Base::code_in(data, i) == bit ? -scale : scale;
  }
  // cast/decode.cuh counts a row's blocks as elements, and names itself by passing no scales.
  static float decode(const u8*, decltype(nullptr), float, int) = delete;
  template <class>
  TW_MEMBER static constexpr bool tiles_for() {
    return false;
  }
};

}  // namespace tw::fmt
