// SPDX-License-Identifier: Apache-2.0
// MXFP4 in ggml's layout (ggml-common.h, block_mxfp4), as GGUF files have it: 32 elements in 17 bytes, an E8M0 scale X
// and 16 bytes of E2M1 codes; byte j holds element j low and element j + 16 high; value = code X. A block here is two
// of ggml's, so that a row's blocks lie at even bytes. Encoder "ggml" (quantize_row_mxfp4_ref): log2 X = floor(log2
// amax) - 2, at least -127; codes nearest, of two as near the smaller, clipped at 6. (ggml rounds log2 amax to single
// precision first, by the C library's log2f, which may take magnitudes a few units below a power of two to be one.)
#pragma once
#include "formats/mxfp4.cuh"
#include "formats/shared/e8m0.cuh"
#include "formats/shared/ggml_fp4.cuh"

namespace tw::fmt {

struct ggml_mxfp4 : GgmlFp4Blocks<34> {
  static constexpr const char* title() { return "ggml MXFP4: E2M1 codes, an E8M0 scale per 32, two of them a block"; }
  static constexpr const char* source() { return "ggml (quantize_row_mxfp4_ref)"; }
  // The scale may leave magnitudes of up to 8 scales; codes end at 6, so larger ones are clipped.
  static constexpr Error error(int) { return {0, 0.25, 0, 0, 1.5e-39}; }
  TW_CONSTANTS(int, kErrorColumns = 32);

  TW_CONSTANTS(int, kHalf = 17);  // bytes of one of ggml's
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int b = 0; b < 2; ++b) {
      u8* const half = data + kHalf * b;
      float largest = 0.0f;
      for (int i = 0; i < 32; ++i) largest = max2(largest, abs_f(x[32 * b + i]));
      half[0] = e8m0_of(min2(largest, 3.4028234663852886e38f), 2);
      const float scale = e8m0_to_f32(half[0]);
      for (int j = 1; j < kHalf; ++j) half[j] = 0;
      for (int i = 0; i < 32; ++i) put_half_code(half + 1, 16, i, nearest_e2m1(x[32 * b + i], scale));
    }
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    const u8* const half = data + kHalf * (i / 32);
    return mul_rn(e2m1_to_f32(half_code(half + 1, 16, i % 32)), e8m0_to_f32(half[0]));
  }

  TW_CONSTANTS(int, kGroup = 32);
  // Four bytes from byte `at` of a run of blocks on.
  TW_MEMBER static u32 word_at(const u32* raw, int at) {
    return at % 4 == 0 ? raw[at / 4] : prmt(raw[at / 4], raw[at / 4 + 1], 0x3210u + 0x1111u * static_cast<u32>(at % 4));
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const int at = kHalf * g;
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const u32 word = word_at(u.raw, at + 1 + 4 * i);
      codes[i] = e2m1_lower_twice(word), codes[4 + i] = e2m1_lower_twice(word >> 4);
    }
    scale = e8m0_to_f32((u.raw[at / 4] >> (8 * (at % 4))) & 255u) * 0.5f;
    offset = 0.0f;
  }

  // mxfp4's tiles, made of other bytes.
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return mxfp4::tiles_for<Element>();
  }
  template <class Element>
  struct Tile : mxfp4::Tile<Element> {
    using mxfp4::Tile<Element>::scale_bits;
    TW_MEMBER static u32 code(const u8* block, int i) { return half_code(block + kHalf * (i / 32) + 1, 16, i % 32); }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      put_half_code(block + kHalf * (i / 32) + 1, 16, i % 32, code);
    }
    TW_MEMBER static void put_scales(u8* out, const u8* data, const u8*, i64 k) {
      for (int g = 0; g < 2; ++g) write16(out + 2 * g, scale_bits(data[k / 64 * kDataBytes + kHalf * g]));
    }
    TW_MEMBER static void take_scales(const u8* in, u8* data, u8*, i64 k) {
      for (int g = 0; g < 2; ++g) data[k / 64 * kDataBytes + kHalf * g] = static_cast<u8>(read16(in + 2 * g) >> 7);
    }
  };
};

}  // namespace tw::fmt
