// SPDX-License-Identifier: Apache-2.0
// Q8_1 as ggml defines it: 32 elements in 36 bytes, half-precision d and s, then 32 signed codes as in Q8_0; value = code d.
// s is redundant: encoder "ggml" (CPU reference) stores d * sum of the codes, "sum_x" (ggml's CUDA quantizer) the sum of
// the inputs, in element order. No kernel here reads s: sums of codes are formed exactly, in integers.
#pragma once
#include "core/format.cuh"

namespace tw::fmt {

struct q8_1 {
  static constexpr const char* kTitle = "ggml Q8_1: 8-bit codes, half scale and sum per 32; for activations";
  static constexpr int kLayout = 1, kBlock = 32, kBits = 8;
  static constexpr int kDataBytes = 36, kScaleBytes = 0;
  static constexpr bool kRowScale = false, kGlobal = false;
  static constexpr int kEncoders = 2;
  static constexpr const char* encoder_name(int i) { return i == 0 ? "ggml" : "sum_x"; }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int encoder) {
    float largest = 0.0f, total = 0.0f;
    for (int i = 0; i < 32; ++i) {
      largest = max2(largest, abs_f(x[i]));
      total = add_rn(total, x[i]);
    }
    const float d = div_rn(largest, 127.0f);
    const float inverse = d != 0.0f ? div_rn(1.0f, d) : 0.0f;
    i32 sum = 0;
    for (int i = 0; i < 32; ++i) {
      const i32 q = static_cast<i8>(to_int(round_away(mul_rn(x[i], inverse))));
      data[4 + i] = static_cast<u8>(q);
      sum += q;
    }
    write16(data, f32_to_f16_bits(d));
    write16(data + 2, f32_to_f16_bits(encoder == 0 ? mul_rn(static_cast<float>(sum), d) : total));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(static_cast<float>(static_cast<i8>(data[4 + i])), f16_bits_to_f32(read16(data)));
  }

  static constexpr int kGroup = 32;
  static constexpr bool kCodes = true, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32 || e == 64 || e == 128; }
  template <int E> struct Unit { u32 raw[E / 32 * 9]; };
  template <int E> TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E / 32 * 36, run_alignment(E / 32 * 36)>(u.raw, data + k / 32 * 36);
  }
  template <int E> TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] = u.raw[9 * g + 1 + i];
    scale = f16_bits_to_f32(static_cast<u16>(u.raw[9 * g]));
    offset = 0.0f;
  }
};

}  // namespace tw::fmt
