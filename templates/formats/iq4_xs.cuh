// SPDX-License-Identifier: Apache-2.0
// IQ4_XS as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 136 bytes: a half-precision d; of eight
// 6-bit scales first the upper two bits, in two bytes, then the lower four, in four; and codes, byte 16 j + l of which
// holds element 32 j + l low and 32 j + 16 + l high; value = d (scale - 32) level[code], levels being IQ4_NL's. Encoder
// "ggml" (quantize_row_iq4_xs_ref): of 16 trial scales of a sub-block the best by weighted least squares; the largest
// scale becomes -32; codes are the levels nearest under what is stored.
#pragma once
#include "formats/shared/levels.cuh"

namespace tw::fmt {

struct iq4_xs : PartBlocks<iq4_xs, 136, 32> {
  static constexpr const char* title() {
    return "ggml IQ4_XS: 4-bit codes of sixteen levels, 6-bit scales per 32, one half per 256";
  }
  static constexpr const char* source() { return "ggml (block_iq4_xs, quantize_row_iq4_xs_ref)"; }
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 1, kBits = 4);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  // Not derived: as iq4_nl's, plus what the integer scale is off.
  static constexpr Error error(int) {
    return {0, 0.25, 0, 1.5 / 32, 32 * 127 * half_least() + 1e-15, 32 * 100 * largest_half()};
  }

  using Levels = Iq4Levels;
  TW_MEMBER static constexpr float unit() { return 1.0f; }
  TW_MEMBER static u32 half_of(const u8* block) { return read16(block); }
  TW_MEMBER static i32 step(const u8* block, int j) {
    const u32 low = (block[4 + j / 2] >> (4 * (j % 2))) & 15u, high = (block[2 + j / 4] >> (2 * (j % 4))) & 3u;
    return static_cast<i32>(low | high << 4) - 32;
  }
  TW_MEMBER static u32 nibble(const u8* block, int i) { return TileBase::code(block, i); }
  struct TileBase : HalfAt<136, 0> {
    TW_MEMBER static constexpr float unit() { return 1.0f; }
    TW_MEMBER static u32 code(const u8* block, int i) {
      return (block[8 + 16 * (i / 32) + i % 16] >> (i / 16 % 2 * 4)) & 15u;
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[8 + 16 * (i / 32) + i % 16] |= static_cast<u8>(code << (i / 16 % 2 * 4));
    }
    // Of sixteen, two of which are the same.
    TW_MEMBER static i8 scale(const u8* block, int j) { return static_cast<i8>(step(block, j / 2)); }
    TW_MEMBER static void put_scale(u8* block, int j, i8 scale) { put_step(block, j / 2, scale); }
  };
  TW_MEMBER static void put_step(u8* block, int j, i32 step) {
    const u32 stored = static_cast<u32>(step + 32);
    block[4 + j / 2] |= static_cast<u8>((stored & 15u) << (4 * (j % 2)));
    block[2 + j / 4] |= static_cast<u8>((stored >> 4) << (2 * (j % 4)));
  }

  // The scale of 32 elements, 0 if there is none.
  TW_MEMBER static float search(const float* x) {
    const float extreme = iq4_extreme(x);
    if (extreme == 0.0f) return 0.0f;
    const auto fitted = [&](const Iq4Fit& fit) { return fit.q2 > 0.0f ? div_rn(fit.qx, fit.q2) : 0.0f; };
    const Iq4Fit first(x, div_rn(1.0f, div_rn(-extreme, -127.0f)));
    float scale = fitted(first), best = mul_rn(scale, first.qx);
    TW_NO_UNROLL for (int step = -7; step <= 7; ++step) {
      const Iq4Fit fit(x, div_rn(static_cast<float>(step - 127), extreme));
      if (fit.q2 > 0.0f && mul_rn(fit.qx, fit.qx) > mul_rn(best, fit.q2))
        scale = fitted(fit), best = mul_rn(scale, fit.qx);
    }
    return scale;
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    float scales[8], most = 0.0f;
    bool spreads = false;  // an infinity
    TW_NO_UNROLL for (int j = 0; j < 8; ++j) {
      scales[j] = search(x + 32 * j);
      if (is_nan(scales[j])) spreads = true;
      if (abs_f(scales[j]) > abs_f(most)) most = scales[j];
    }
    for (int i = 0; i < 136; ++i) data[i] = 0;
    const float d = spreads ? div_rn(1.0f, 0.0f) : div_rn(-most, 32.0f), inverse = d != 0.0f ? div_rn(1.0f, d) : 0.0f;
    write16(data, f32_to_f16_bits(d));
    TW_NO_UNROLL for (int j = 0; j < 8; ++j) {
      const i32 step = spreads ? 1 : clamped(mul_rn(inverse, scales[j]), -32, 31);
      put_step(data, j, step);
      const float scale = mul_rn(d, static_cast<float>(step)), by = scale != 0.0f ? div_rn(1.0f, scale) : 0.0f;
      for (int i = 32 * j; i < 32 * j + 32; ++i) TileBase::put_code(data, i, nearest_iq4(mul_rn(by, x[i])));
    }
  }

  TW_CONSTANTS(int, kParts = 2);
  TW_MEMBER static constexpr Part part(int p) { return p == 0 ? Part{0, 0, 0, 8} : Part{8, 16, 0, 0}; }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 4; ++i) Levels::both(u.word(1, 4 * g + i), codes[i], codes[4 + i]);
    const int j = u.first + g;
    const u32 stored = ((u.word(0, 1) >> (4 * j)) & 15u) | ((u.word(0, 0) >> (16 + 2 * j)) & 3u) << 4;
    scale = scale_of_step(u.two(0, 0), static_cast<i32>(stored) - 32);
    offset = 0.0f;
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = LevelsSixteens<Element, TileBase, Levels>;
};

}  // namespace tw::fmt
