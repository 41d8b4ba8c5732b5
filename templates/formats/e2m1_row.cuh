// SPDX-License-Identifier: Apache-2.0
// FP4 E2M1 (arXiv 2310.10537, OCP MX: 0 .5 1 1.5 2 3 4 6 and a sign) with one float scale per row: two codes a byte,
// even element low; scale = amax / 6 (1 if that is 0), code = E2M1 of x / scale, nearest even, saturating; value = E2M1
// * scale.
#pragma once
#include "formats/shared/e2m1.cuh"
#include "formats/shared/row_scale.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

struct E2m1Row {
  TW_CONSTANTS(int, kBits = 4);
  TW_MEMBER static constexpr float step() { return 0.5f; }
  TW_MEMBER static void bytes(u32 word, u32* codes) { e2m1_bytes(word, codes[0], codes[1]); }
};

struct e2m1_row : RowCodes<E2m1Row> {
  static constexpr const char* title() { return "FP4 E2M1, one float scale per row"; }
  static constexpr const char* source() { return "OCP E2M1; amax / 6 is this library's"; }
  static constexpr Error error(int) { return {0, 1.0 / 6, 0, 0, 6 * least_float(), largest_scaled()}; }  // 5 of 4 and 6
  static constexpr const char* encoder_name(int) { return "amax6"; }
  TW_MEMBER static constexpr CodeSteps steps(int) { return e2m1_steps(); }
  TW_MEMBER static float row_scale(float amax) { return scale_for(amax, 6.0f); }

  TW_MEMBER static u32 code(float steps) { return f32_to_e2m1(steps); }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float scale, int) {
    data[0] = static_cast<u8>(code(div_rn(x[0], scale)) | (code(div_rn(x[1], scale)) << 4));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float scale, int i) {
    return mul_rn(e2m1_to_f32((data[0] >> (4 * i)) & 15u), scale);
  }

  // Exact. A code's fields moved to an E4M3's are 2^-6 of its value; to an f16's 2^-14.
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2 || same<Element, tw::e4m3>();
  }
  struct BytesTile : TileBase {
    TW_MEMBER static constexpr float factor() { return 64.0f; }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
      TW_UNROLL for (int r = 0; r < 4; ++r) {
        const u32 word = w[2 * step + r / 2];
        a[r] = ((r % 2 ? word : word << 4) & 0x80808080u) | ((r % 2 ? word >> 2 : word << 2) & 0x1c1c1c1cu);
      }
    }
  };
  template <class Element>
  struct FloatsTile : TileBase {
    using Place = E2m1Place<Element>;
    TW_MEMBER static constexpr float factor() { return Place::kHalf ? 16384.0f : 1.0f; }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
      TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = Place::kHalf ? Place::pair(w[step], r) : e2m1_values(w[step], r);
    }
  };
  template <class Element>
  using Tile = select<sizeof(Element) == 2, FloatsTile<Element>, BytesTile>;
};

}  // namespace tw::fmt
