// SPDX-License-Identifier: Apache-2.0
// IQ4_NL as ggml defines it (ggml-common.h, ggml-quants.c): 32 elements in 18 bytes, a half-precision scale d and 16
// bytes of codes; byte j holds element j low and element j + 16 high; value = d level[code], of sixteen levels that lie
// closer to each other near zero. Encoder "ggml" (quantize_row_iq4_nl_ref): codes are the levels nearest under the
// scale that makes the extreme -127; then d is the least-squares scale for them, weighted by the elements' squares.
#pragma once
#include "formats/shared/blocks32.cuh"
#include "formats/shared/levels.cuh"

namespace tw::fmt {

struct iq4_nl : Nibbles32<18, 4, 2> {
  static constexpr const char* title() { return "ggml IQ4_NL: 4-bit codes of sixteen levels, one half scale per 32"; }
  static constexpr const char* source() { return "ggml (block_iq4_nl, quantize_row_iq4_nl_ref)"; }
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  // Not derived, as d is fitted after the codes: half of the widest gap, and what the fit moves the outermost level.
  static constexpr Error error(int) { return {0, 0.25, 0, 0, 127 * half_least() + 1e-15, 100 * largest_half()}; }

  using Levels = Iq4Levels;
  TW_MEMBER static u32 nibble(const u8* block, int i) { return stored_code(block, i); }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    const float extreme = iq4_extreme(x);
    const float inverse = extreme != 0.0f ? div_rn(1.0f, div_rn(extreme, -127.0f)) : 0.0f;
    float d = 0.0f;
    if (extreme != 0.0f) {
      const Iq4Fit fit(x, inverse);
      if (fit.q2 > 0.0f) d = div_rn(fit.qx, fit.q2);
    }
    write16(data, f32_to_f16_bits(d));
    // ggml leaves the codes of zeros as they happen to be.
    write_codes(data, [&](int i) { return extreme != 0.0f ? nearest_iq4(mul_rn(inverse, x[i])) : 0u; });
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(f16_bits_to_f32(read16(data)), static_cast<float>(Levels::level(nibble(data, i))));
  }

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(bool, kOffset = false);
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 4; ++i) Levels::both(block_word<18>(u.raw, g, i), codes[i], codes[4 + i]);
    scale = block_scale<18>(u.raw, g);
    offset = 0.0f;
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = LevelsTile<Element, TileBase, Levels>;
};

}  // namespace tw::fmt
