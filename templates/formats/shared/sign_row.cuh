// SPDX-License-Identifier: Apache-2.0
// Shared by the formats of signs with one float scale per row: eight bits a byte, the first lowest; value = scale or
// -scale. Encoder "absmean": scale = mean |x|, summed in double precision. Zeros, -0 among them, are positive. Beside
// the scale is the number of the row's bits that are 1, from which matrix units make products of signs by signs.
#pragma once
#include "formats/shared/row_scale.cuh"

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
struct Signs : RowCodes<SignRow<bit>, SignItem<bit>> {
  using Base = RowCodes<SignRow<bit>, SignItem<bit>>;
  static constexpr Error error(int) { return {0, 1, 0, 0, least_float()}; }  // a zero, or an element far above the mean
  static constexpr const char* encoder_name(int) { return "absmean"; }
  TW_MEMBER static SignItem<bit> row_scale_of_mean(float mean) { return {mean}; }
  TW_MEMBER static float decode(const u8* data, const u8*, const SignItem<bit>& item, int i) {
    return Base::code_in(data, i) == bit ? -item.scale : item.scale;
  }
  template <class>
  TW_MEMBER static constexpr bool tiles_for() {
    return false;
  }
};

// Signs as they are multiplied by signs: eight of a row are an element, and k counts these.
// (operations/gemm/cuda/signs.cuh)
template <class F>
struct SignBytes : RowElements<signs8, typename F::RowItem> {};

}  // namespace tw::fmt
