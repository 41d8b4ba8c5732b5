// SPDX-License-Identifier: Apache-2.0
// Weights -1, 0 and 1 with one float scale per row (BitNet b1.58, arXiv 2402.17764): four 2-bit codes a byte, the first
// lowest; value = (code - 1) scale, code 3 being 2. The codes are those of transformers' packed checkpoints, whose
// bytes hold four rows where these hold four columns. Encoder "absmean": scale = mean |x| (1 if that is 0), summed in
// double precision, code = 1 + nearest even of x / scale, clamped to 0..2.
#pragma once
#include "formats/shared/blocks32.cuh"
#include "formats/shared/row_scale.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

struct TernaryRow {
  TW_CONSTANTS(int, kBits = 2);
  TW_MEMBER static constexpr float step() { return 1.0f; }
  TW_MEMBER static void bytes(u32 word, u32* codes) { two_bits_less_one(word, codes); }
};

struct ternary_row : RowCodes<TernaryRow> {
  static constexpr const char* title() { return "codes -1, 0 and 1 in two bits, one float scale per row"; }
  static constexpr const char* source() { return "BitNet b1.58 (arXiv 2402.17764), absmean; codes of transformers"; }
  static constexpr Error error(int) { return {0, 1, 0, 0, least_float()}; }  // an element far above the mean
  static constexpr const char* encoder_name(int) { return "absmean"; }
  TW_MEMBER static float row_scale_of_mean(float mean) { return mean > 0.0f ? mean : 1.0f; }

  TW_MEMBER static u32 code(float steps) { return static_cast<u32>(max2(min2(to_int(rint_even(steps)), 1), -1) + 1); }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float scale, int) {
    u32 byte = 0;
    for (int i = 0; i < kBlock; ++i) byte |= code(div_rn(x[i], scale)) << (kBits * i);
    data[0] = static_cast<u8>(byte);
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float scale, int i) {
    return mul_rn(static_cast<float>(static_cast<i32>(code_in(data, i)) - 1), scale);
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  struct Tile : TileBase {
    TW_MEMBER static constexpr float factor() { return 1.0f; }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
      TileCodes<Element, 2>::template pairs<1>(w, step, a);
    }
  };
};

}  // namespace tw::fmt
