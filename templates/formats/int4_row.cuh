// SPDX-License-Identifier: Apache-2.0
// 4-bit codes with one float scale per row, as compressed-tensors' pack-quantized weights with strategy "channel" pack
// them: two codes a byte, even element low; value = (code - 8) scale.
// Encoder "amax7": scale = amax / 7 (1 if that is 0), code = 8 + nearest even of x / scale, clamped to 1..15.
#pragma once
#include "formats/shared/int4.cuh"
#include "formats/shared/row_scale.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

struct Int4Row {
  TW_CONSTANTS(int, kBits = 4);
  TW_MEMBER static constexpr float step() { return 0.0625f; }
  TW_MEMBER static void bytes(u32 word, u32* codes) { nibble_bytes_signed(word, codes[0], codes[1]); }
};

struct int4_row : RowCodes<Int4Row> {
  static constexpr const char* title() { return "4-bit codes minus 8, one float scale per row"; }
  static constexpr const char* source() {
    return "compressed-tensors (pack-quantized, strategy channel); amax / 7 is this library's";
  }
  static constexpr Error error(int) { return {0, 0.5 / 7, 0, 0, 7 * least_float(), largest_scaled()}; }
  static constexpr const char* encoder_name(int) { return "amax7"; }
  TW_MEMBER static constexpr CodeSteps steps(int) { return {4, false, 1, 15}; }
  TW_MEMBER static float row_scale(float amax) { return scale_for(amax, 7.0f); }

  TW_MEMBER static u32 code(float steps) { return static_cast<u32>(max2(min2(to_int(rint_even(steps)), 7), -7) + 8); }
  // A row's values, for those who round weights one at a time.
  struct Grid {
    float scale;
    // The item of stream `scales` for weights from low to high, 0 among them.
    TW_MEMBER static u32 item(float low, float high, int) { return bits_as<u32>(row_scale(max2(high, -low))); }
    TW_MEMBER explicit Grid(u32 item) : scale(bits_as<float>(item)) {}
    TW_MEMBER u32 nearest(float v, int) const { return code(div_rn(v, scale)); }
    TW_MEMBER float value(u32 code) const { return mul_rn(static_cast<float>(static_cast<i32>(code) - 8), scale); }
  };
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float scale, int encoder) {
    const Grid grid(bits_as<u32>(scale));
    data[0] = static_cast<u8>(grid.nearest(x[0], encoder) | (grid.nearest(x[1], encoder) << 4));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float scale, int i) {
    return mul_rn(static_cast<float>(static_cast<i32>((data[0] >> (4 * i)) & 15u) - 8), scale);
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2 || same<Element, tw::i8>() || same<Element, tw::e4m3>();
  }
  template <class Element>
  using Tile =
      select<sizeof(Element) == 2, NibbleIntegersTile<Element, TileBase>, SignedNibblesTile<Element, TileBase>>;
};

}  // namespace tw::fmt
