// SPDX-License-Identifier: Apache-2.0
// What ggml's two FP4 formats share: E2M1 codes as ggml chooses and packs them, sixteen or thirty-two of them to a
// scale, the first half in the lower nibbles of as many bytes, the second in the upper ones; and blocks of 64 elements
// that hold their scales.
#pragma once
#include "formats/shared/e2m1.cuh"
#include "formats/shared/format.cuh"

namespace tw::fmt {

// The code whose value under `scale` is nearest to x, of two as near the smaller one, and never -0 (ggml's
// best_index_mxfp4). An infinity is the largest; a NaN, to which nothing is near, 0.
TW_FN u32 nearest_e2m1(float x, float scale) {
  const float magnitude = abs_f(x);
  u32 best = magnitude > 3.4028234663852886e38f ? 7 : 0;
  float least = magnitude;
  for (u32 code = 1; code < 8; ++code) {
    const float error = abs_f(add_rn(mul_rn(e2m1_to_f32(code), scale), -magnitude));
    if (error < least) best = code, least = error;
  }
  return best > 0 && x < 0.0f ? best | 8u : best;
}

// Element i of codes whose halves have `half` elements each.
TW_FN u32 half_code(const u8* codes, int half, int i) { return (codes[i % half] >> (i < half ? 0 : 4)) & 15u; }
TW_FN void put_half_code(u8* codes, int half, int i, u32 code) {
  codes[i % half] |= static_cast<u8>(code << (i < half ? 0 : 4));
}

// The lower nibbles of a word's bytes, as e2m1_twice().
TW_DEVICE u32 e2m1_lower_twice(u32 word) {
  u32 nibbles = word & 0x0f0f0f0fu;
  nibbles |= nibbles >> 4;
  return e2m1_twice((nibbles & 0xffu) | ((nibbles >> 8) & 0xff00u));
}

template <int block_bytes>
struct GgmlFp4Blocks : StandAlone {
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::saturates; }
  TW_CONSTANTS(int, kLayout = 1, kBlock = 64, kBits = 4);
  TW_CONSTANTS(int, kDataBytes = block_bytes, kScaleBytes = 0);
  TW_CONSTANTS(int, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = void;
  using TileElement = void;
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }

  TW_CONSTANTS(bool, kCodes = true, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 64 || e == 128 || e == 256; }
  TW_MEMBER static constexpr int bytes_of(int e) { return e / 64 * block_bytes; }
  template <int E>
  struct Unit {
    u32 raw[ceil_div(bytes_of(E), 4)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<bytes_of(E), run_alignment(bytes_of(E))>(u.raw, data + k / 64 * block_bytes);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return bytes_of(BK);
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 64 * block_bytes + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    load_shared_words<bytes_of(E), run_alignment(bytes_of(E))>(u.raw, raw + k / 64 * block_bytes);
  }
};

}  // namespace tw::fmt
