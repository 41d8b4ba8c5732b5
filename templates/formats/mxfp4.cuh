// SPDX-License-Identifier: Apache-2.0
// MXFP4 (OCP Microscaling Formats v1.0) in the plain layout of torchao (mx_tensor.py) and Model Optimizer: 32 elements
// share one E8M0 scale X = 2^(b - 127), b = 255: NaN; stream `data` packs two E2M1 codes a byte, even element low;
// stream `scales` is one byte per 32; value = code X. A block here is two of
// the standard's, so that a row's scales can be read two bytes at a time. Encoder "floor": b - 127 = floor(log2 amax) -
// 2, at least -127, as section 6.3 of the standard says; elements E2M1 of x / X, nearest even, saturating; b = 0 for
// zeros, 255 if an element is infinite. Others: formats/shared/e8m0.cuh. (ggml's MXFP4, ggml_mxfp4, orders its bytes
// otherwise.)
#pragma once
#include "formats/shared/e2m1.cuh"
#include "formats/shared/e8m0.cuh"
#include "formats/shared/format.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

struct Mxfp4Elements {
  TW_CONSTANTS(int, kEmax = 2, kMantissa = 1, kBytes = 2);
  TW_CONSTANTS(u32, kLargest = 0x400000u);  // 6
  TW_MEMBER static u32 codes(const float (&v)[4]) {
    u32 codes = 0;
    TW_UNROLL for (int j = 0; j < 4; ++j) codes |= f32_to_e2m1(v[j]) << (4 * j);
    return codes;
  }
};

struct mxfp4 : MicroscaledBlocks<Mxfp4Elements> {
  static constexpr const char* title() { return "OCP MXFP4: E2M1 codes, an E8M0 scale per 32, two of them a block"; }
  static constexpr const char* source() {
    return "OCP Microscaling Formats v1.0 (6.3); layout of torchao and Model Optimizer";
  }
  // Floor's scale may leave magnitudes of up to 8 scales; codes end at 6, so larger ones are clipped. Others leave up
  // to 6 or 7, of which 5 becomes 4; beyond 2^127 they round up to what is no float.
  static constexpr Error error(int i) {
    if (i == 0) return {0, 0.25, 0, 0, 1.5e-39};
    return {0, 0.2, 0, 0, 1.5e-39, 2.5e38f};
  }
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_CONSTANTS(int, kLayout = 2, kBlock = 64, kBits = 4);
  TW_CONSTANTS(int, kDataBytes = 32, kScaleBytes = 2);
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::mxf4; }

  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    const u32 code = i % 2 ? data[i / 2] >> 4 : data[i / 2] & 15u;
    return mul_rn(e2m1_to_f32(code), e8m0_to_f32(scales[i / 32]));
  }

  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kCodes = true, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[E / 8], scales[ceil_div(E, 128)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8* scales, i64 k) {
    load_words<E / 2, 16>(u.raw, data + k / 2);
    load_words<E / 32, run_alignment(E / 32)>(u.scales, scales + k / 32);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 2;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 2 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8* scales, int k, i64) {
    load_shared_words<E / 2, 16>(u.raw, raw + k / 2);
    load_shared_words<E / 32, run_alignment(E / 32)>(u.scales, scales + k / 32);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 4; ++i) e2m1_bytes(u.raw[4 * g + i], codes[2 * i], codes[2 * i + 1]);
    scale = e8m0_to_f32((u.scales[g / 4] >> (8 * (g % 4))) & 255u) * 0.5f;
    offset = 0.0f;
  }

  // Exact against bf16, whose exponents reach as far as the scales'. A tile has scales as bf16, a byte more for each,
  // so that a scale is one operation: where tokens are few it is operations that count.
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return same<Element, tw::bf16>();
  }
  struct TileBase {
    using Place = E2m1Place<tw::bf16>;
    TW_CONSTANTS(int, kBits = 4, kScaleK = 64, kScaleBytes = 4, kGroups = 2);
    TW_MEMBER static constexpr float factor() { return 1.0f; }
    TW_CONSTANTS(bool, kOffset = false);
    TW_MEMBER static constexpr double rounding() { return 0; }
    TW_MEMBER static u32 code(const u8* block, int i) { return (block[i / 2] >> (4 * (i % 2))) & 15u; }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[i / 2] |= static_cast<u8>(code << (4 * (i % 2)));
    }
    // 2^(code - 127), the first of them below the normal ones, and a NaN: the code is bits 7 to 14 again.
    TW_MEMBER static u16 scale_bits(u32 code) {
      return static_cast<u16>(code << 7 | (code == 0 || code == 255 ? 0x40u : 0u));
    }
    TW_MEMBER static void put_scales(u8* out, const u8*, const u8* scales, i64 k) {
      for (int g = 0; g < 2; ++g) write16(out + 2 * g, scale_bits(scales[k / 32 + g]));
    }
    TW_MEMBER static void take_scales(const u8* in, u8*, u8* scales, i64 k) {
      for (int g = 0; g < 2; ++g) scales[k / 32 + g] = static_cast<u8>(read16(in + 2 * g) >> 7);
    }
    struct Scales {
      u32 rows[2];
    };  // two groups' each
    TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
      const u32x2 q = *reinterpret_cast<const u32x2*>(chunk + 8 * pair);
      return {{q.x, q.y}};
    }
  };
  struct AfterMmaTile : TileBase {
    TW_CONSTANTS(bool, kScaleAfterMma = true);
    TW_MEMBER static float row_scale(const Scales& s, int row, int step) {
      return bits_as<float>(step < 2 ? s.rows[row] << 16 : s.rows[row] & 0xffff0000u);
    }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
      TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = e2m1_values(w[step], r);
    }
  };
  template <class Element>
  struct Tile : TileBase {
    using AfterMma = AfterMmaTile;
    TW_CONSTANTS(bool, kScaleAfterMma = false);
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
      u32 of_group[2];
      TW_UNROLL for (int row = 0; row < 2; ++row) of_group[row] =
          prmt(scales.rows[row], 0u, step < 2 ? 0x1010u : 0x3232u);
      TW_UNROLL for (int r = 0; r < 4; ++r) a[r] =
          fma2<tw::bf16>(e2m1_values(w[step], r), of_group[r % 2], kNegativeZeros);
    }
  };
};

}  // namespace tw::fmt
