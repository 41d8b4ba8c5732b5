// SPDX-License-Identifier: Apache-2.0
// Q8_1 as ggml defines it: 32 elements in 36 bytes, half-precision d and s, then 32 signed codes as in Q8_0; value =
// code d. s is redundant: encoder "ggml" (CPU reference) stores d * sum of the codes, "sum_x" (ggml's CUDA quantizer)
// the sum of the inputs, in element order. No kernel here reads s: sums of codes are formed exactly, in integers.
#pragma once
#include "formats/shared/blocks32.cuh"

namespace tw::fmt {

struct q8_1 : Blocks32<36, 8, 128> {
  static constexpr const char* title() { return "ggml Q8_1: 8-bit codes, half scale and sum per 32; for activations"; }
  static constexpr const char* source() { return "ggml (quantize_row_q8_1_ref; sum_x: its CUDA quantizer's sum)"; }
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 2);
  static constexpr const char* encoder_name(int i) { return i == 0 ? "ggml" : "sum_x"; }
  static constexpr Error error(int) { return half_scale_error(0.5 / 127, 127); }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int encoder) {
    float largest = 0.0f, total = 0.0f;
    for (int i = 0; i < 32; ++i) {
      largest = max2(largest, abs_f(x[i]));
      total = add_rn(total, x[i]);
    }
    const float d = div_rn(largest, 127.0f);
    const float inverse = inverse_of(d);
    i32 sum = 0;
    for (int i = 0; i < 32; ++i) {
      const i32 q = static_cast<i8>(to_int_away(mul_rn(x[i], inverse)));
      data[4 + i] = static_cast<u8>(q);
      sum += q;
    }
    write16(data, f32_to_f16_bits(d));
    write16(data + 2, f32_to_f16_bits(encoder == 0 ? mul_rn(static_cast<float>(sum), d) : total));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    return mul_rn(static_cast<float>(static_cast<i8>(data[4 + i])), f16_bits_to_f32(read16(data)));
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  // The sum in element order: each lane in turn adds its elements to what the lane before it hands on. The last has
  // all.
  template <int E>
  TW_MEMBER static float sum_in_order(const float (&v)[E], int lane) {
    constexpr int kLanes = 32 / E;
    float before = 0.0f, total = 0.0f;
    TW_UNROLL for (int step = 0; step < kLanes; ++step) {
      total = before;
      TW_UNROLL for (int i = 0; i < E; ++i) total = add_rn(total, v[i]);
      if (step + 1 == kLanes) break;
      const float handed = shuffle_xor(total, step ^ (step + 1));
      if (lane == step + 1) before = handed;
    }
    return total;
  }
  // The scale, before it is stored as f16.
  template <int E>
  TW_MEMBER static float quantize(const float (&v)[E], u32 (&codes)[E / 4]) {
    const float d = div_rn(largest_of<32 / E>(v), 127.0f);
    const float inverse = inverse_of(d);
    TW_UNROLL for (int i = 0; i < E; i += 4) {
      u32 q[4];
      TW_UNROLL for (int j = 0; j < 4; ++j) q[j] = static_cast<u32>(to_int_away(mul_rn(v[i + j], inverse)));
      codes[i / 4] = pack_bytes(q[0], q[1], q[2], q[3]);
    }
    return d;
  }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8*, float, int encoder) {
    constexpr int kLanes = 32 / E;
    u32 codes[E / 4];
    const float d = quantize(v, codes);
    i32 sum = 0;
    TW_UNROLL for (int i = 0; i < E / 4; ++i) {
      sum = dp4a(codes[i], 0x01010101u, sum);
      *reinterpret_cast<u32*>(data + 4 + E * lane + 4 * i) = codes[i];
    }
    float s = 0.0f;
    if (encoder == 0)
      s = mul_rn(static_cast<float>(sum_lanes<kLanes>(sum)), d);
    else
      s = sum_in_order(v, lane);
    if (lane == kLanes - 1)
      *reinterpret_cast<u32*>(data) = f32_to_f16_bits(d) | (static_cast<u32>(f32_to_f16_bits(s)) << 16);
  }

  TW_CONSTANTS(bool, kCodeLanes = true);
  template <int E>
  TW_MEMBER static float code_lanes(const float (&v)[E], u32 (&codes)[E / 4]) {
    return f16_bits_to_f32(f32_to_f16_bits(quantize(v, codes)));
  }

  using TileElement = Codes;
  TW_CONSTANTS(int, kCodesAt = 4);  // in a block, after the scale and the sum
  template <class>
  TW_MEMBER static constexpr bool tiles_for() {
    return false;
  }  // activations
  TW_CONSTANTS(bool, kOffset = false);
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] = u.raw[9 * g + 1 + i];
    scale = f16_bits_to_f32(static_cast<u16>(u.raw[9 * g]));
    offset = 0.0f;
  }
};

}  // namespace tw::fmt
