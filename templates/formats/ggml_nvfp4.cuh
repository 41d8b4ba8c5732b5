// SPDX-License-Identifier: Apache-2.0
// NVFP4 in ggml's layout (ggml-common.h, block_nvfp4), as GGUF files have it: 64 elements in 36 bytes, four E4M3 scales
// s of 16 elements each, then for each of these eight bytes of E2M1 codes; byte j holds element j low and element j + 8
// high; value = code s. A scale of the tensor is a tensor of its own, which the epilogue applies (alpha). Encoder
// "ggml" (quantize_row_nvfp4_ref): s is amax / 6, half up, 448 from 256 on; codes nearest, of two as near the smaller,
// clipped at 6. (Of scales that no encoder writes, ggml reads 0x7f, a NaN here, as 0, and ignores a sign.)
#pragma once
#include "formats/nvfp4.cuh"
#include "formats/shared/ggml_fp4.cuh"

namespace tw::fmt {

struct ggml_nvfp4 : GgmlFp4Blocks<36> {
  static constexpr const char* title() { return "ggml NVFP4: E2M1 codes, an E4M3 scale per 16, four of them a block"; }
  static constexpr const char* source() { return "ggml (quantize_row_nvfp4_ref)"; }
  // Where a scale of 448 stands for 373, 5 of its steps, the largest magnitude, become 4. Below 2^-6 scales are
  // multiples of 2^-9, the last of which stands for the next one, too.
  static constexpr Error error(int) { return {0, 0.2, 0, 0, 6.0 / 512, 2688.0f}; }
  TW_CONSTANTS(int, kErrorColumns = 16);

  // ggml_fp32_to_ue4m3: half up, in whole steps of 2^-9 below 2^-6, of which there are seven at most.
  TW_MEMBER static u8 scale_of(float v) {
    if (!(v > 0.0f)) return 0;
    const u32 bits = bits_as<u32>(v);
    const i32 exponent = static_cast<i32>(bits >> 23) - 120;  // E4M3's
    if (exponent <= 0) return static_cast<u8>(min2(to_int(add_rn(mul_rn(v, 512.0f), 0.5f)), 7));
    if (exponent >= 15) return 0x7e;
    const u32 rounded = (static_cast<u32>(exponent) << 3 | (bits >> 20 & 7u)) + (bits >> 19 & 1u);
    return static_cast<u8>(rounded >= 0x78u ? 0x7eu : rounded);
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int s = 0; s < 4; ++s) {
      float largest = 0.0f;
      for (int i = 0; i < 16; ++i) largest = max2(largest, abs_f(x[16 * s + i]));
      data[s] = scale_of(div_rn(largest, 6.0f));
      const float scale = e4m3_to_f32(data[s]);
      u8* const codes = data + 4 + 8 * s;
      for (int j = 0; j < 8; ++j) codes[j] = 0;
      for (int i = 0; i < 16; ++i) put_half_code(codes, 8, i, nearest_e2m1(x[16 * s + i], scale));
    }
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(e2m1_to_f32(half_code(data + 4 + i / 16 * 8, 8, i % 16)), e4m3_to_f32(data[i / 16]));
  }

  TW_CONSTANTS(int, kGroup = 16);
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[4], float& scale, float& offset) {
    const int block = g / 4 * (kDataBytes / 4), words = block + 1 + g % 4 * 2;
    TW_UNROLL for (int i = 0; i < 2; ++i) {
      codes[i] = e2m1_lower_twice(u.raw[words + i]), codes[2 + i] = e2m1_lower_twice(u.raw[words + i] >> 4);
    }
    scale = e4m3_to_f32(static_cast<u8>(u.raw[block] >> (8 * (g % 4)))) * 0.5f;
    offset = 0.0f;
  }

  // nvfp4's tiles, made of other bytes.
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return nvfp4::tiles_for<Element>();
  }
  template <class Element>
  struct Tile : nvfp4::Tile<Element> {
    TW_MEMBER static u32 code(const u8* block, int i) { return half_code(block + 4 + i / 16 * 8, 8, i % 16); }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      put_half_code(block + 4 + i / 16 * 8, 8, i % 16, code);
    }
    TW_MEMBER static void put_scales(u8* out, const u8* data, const u8*, i64 k) {
      for (int i = 0; i < 4; ++i) out[i] = data[k / 64 * kDataBytes + i];
    }
    TW_MEMBER static void take_scales(const u8* in, u8* data, u8*, i64 k) {
      for (int i = 0; i < 4; ++i) data[k / 64 * kDataBytes + i] = in[i];
    }
  };
};

}  // namespace tw::fmt
