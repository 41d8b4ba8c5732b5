// SPDX-License-Identifier: Apache-2.0
// Q4_K as ggml defines it: 256 elements in 144 bytes: half-precision d and dmin, twelve bytes of 6-bit (scale, minimum)
// pairs for eight sub-blocks of 32, then 128 bytes of codes; byte 32 p + l holds element 64 p + l low and 64 p + 32 + l
// high; value = d scale code - dmin minimum.
// Encoder "ggml": for each sub-block a weighted least-squares line through 21 trial scales, the float operations in the
// order of ggml's reference, so that the bytes agree.
#pragma once
#include "formats/shared/k_search.cuh"

namespace tw::fmt {

struct q4_k : MinimaBlocks<4> {
  static constexpr const char* title() {
    return "ggml Q4_K: 4-bit codes, 6-bit scales and minima per 32, two halves per 256";
  }
  static constexpr const char* source() { return "ggml (quantize_row_q4_K_ref)"; }
  TW_CONSTANTS(int, kLayout = 1, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "ggml"; }
  // This bound is not derived, since the search minimizes a weighted sum of squares and not the largest error: it is
  // two steps plus the error of the plain encoder's scales. No block of tests/templates exceeds it.
  static constexpr Error error(int) {
    return {0, 0, 2.0 / 15, 1.5 / 63 + 3 * half_rounding(), 16 * 63 * half_least(), 63 * largest_half()};
  }

  struct Line {  // x ~ scale * code - minimum
    float scale, minimum;
  };
  TW_MEMBER static i32 quantize(float v, i32 top) { return max2(0, min2(top, to_int(rint_even(v)))); }

  // Weighted squared error of codes against a line, in element order.
  TW_MEMBER static float error(const float* x, const float* weight, const u8* code, float scale, float low) {
    float total = 0.0f;
    for (int i = 0; i < 32; ++i) {
      const float difference = sub_rn(add_rn(mul_rn(scale, static_cast<float>(code[i])), low), x[i]);
      total = add_rn(total, mul_rn(weight[i], mul_rn(difference, difference)));
    }
    return total;
  }
  // Codes under a trial scale and the least-squares line through them. False if the system is singular.
  TW_MEMBER static bool fit(const float* x, const float* weight, float inverse, float low, float sum_w, float sum_x,
                            u8* code, float& scale, float& intercept) {
    float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
    for (int i = 0; i < 32; ++i) {
      const i32 l = quantize(mul_rn(inverse, sub_rn(x[i], low)), 15);
      code[i] = static_cast<u8>(l);
      const float wl = mul_rn(weight[i], static_cast<float>(l));
      sum_l = add_rn(sum_l, wl);
      sum_l2 = add_rn(sum_l2, mul_rn(wl, static_cast<float>(l)));
      sum_xl = add_rn(sum_xl, mul_rn(wl, x[i]));
    }
    const float determinant = sub_rn(mul_rn(sum_w, sum_l2), mul_rn(sum_l, sum_l));
    if (!(determinant > 0.0f)) return false;
    scale = div_rn(sub_rn(mul_rn(sum_w, sum_xl), mul_rn(sum_x, sum_l)), determinant);
    intercept = div_rn(sub_rn(mul_rn(sum_l2, sum_x), mul_rn(sum_l, sum_xl)), determinant);
    if (intercept > 0.0f) {
      intercept = 0.0f;
      scale = div_rn(sum_xl, sum_l2);
    }
    return true;
  }
  // The line of one sub-block and its codes.
  TW_MEMBER static Line search(const float* x, u8* code) {
    float weight[32];
    float squares = 0.0f;
    for (int i = 0; i < 32; ++i) squares = add_rn(squares, mul_rn(x[i], x[i]));
    const float rms = sqrt_rn(div_rn(squares, 32.0f));
    for (int i = 0; i < 32; ++i) weight[i] = add_rn(rms, abs_f(x[i]));

    float low = x[0], high = x[0], sum_w = weight[0], sum_x = mul_rn(weight[0], x[0]);
    for (int i = 1; i < 32; ++i) {
      if (x[i] < low) low = x[i];
      if (x[i] > high) high = x[i];
      sum_w = add_rn(sum_w, weight[i]);
      sum_x = add_rn(sum_x, mul_rn(weight[i], x[i]));
    }
    if (low > 0.0f) low = 0.0f;
    if (high == low) {
      for (int i = 0; i < 32; ++i) code[i] = 0;
      return {0.0f, -low};
    }
    const float range = sub_rn(high, low);
    const float first = div_rn(15.0f, range);
    float scale = div_rn(1.0f, first), intercept = low;
    for (int i = 0; i < 32; ++i) code[i] = static_cast<u8>(quantize(mul_rn(first, sub_rn(x[i], low)), 15));
    float best = error(x, weight, code, scale, low);
    // The codes of a trial are taken against the intercept found so far.
    TW_NO_UNROLL for (int step = 0; step <= 20; ++step) {
      u8 trial[32];
      float trial_scale, trial_low;
      const float inverse =
          div_rn(add_rn(add_rn(-1.0f, mul_rn(0.1f, static_cast<float>(step))), 15.0f), sub_rn(high, intercept));
      if (!fit(x, weight, inverse, intercept, sum_w, sum_x, trial, trial_scale, trial_low)) continue;
      const float e = error(x, weight, trial, trial_scale, trial_low);
      if (!(e < best)) continue;
      for (int i = 0; i < 32; ++i) code[i] = trial[i];
      best = e, scale = trial_scale, intercept = trial_low;
    }
    return {scale, -intercept};
  }

  TW_MEMBER static void pack_scales(const Line* lines, u8* data) {
    float top_scale = 0.0f, top_minimum = 0.0f;
    for (int j = 0; j < 8; ++j) {
      if (lines[j].scale > top_scale) top_scale = lines[j].scale;
      if (lines[j].minimum > top_minimum) top_minimum = lines[j].minimum;
    }
    const float inverse_scale = top_scale > 0.0f ? div_rn(63.0f, top_scale) : 0.0f;
    const float inverse_minimum = top_minimum > 0.0f ? div_rn(63.0f, top_minimum) : 0.0f;
    write16(data, f32_to_f16_bits(div_rn(top_scale, 63.0f)));
    write16(data + 2, f32_to_f16_bits(div_rn(top_minimum, 63.0f)));
    u8* s = data + 4;
    for (int j = 0; j < 8; ++j) {
      // ggml narrows to a byte before the clamp: a negative value becomes 63.
      const u32 ls = min2(static_cast<u32>(to_int(rint_even(mul_rn(inverse_scale, lines[j].scale)))) & 255u, 63u);
      const u32 lm = min2(static_cast<u32>(to_int(rint_even(mul_rn(inverse_minimum, lines[j].minimum)))) & 255u, 63u);
      if (j < 4) {
        s[j] = static_cast<u8>(ls), s[j + 4] = static_cast<u8>(lm);
      } else {
        s[j + 4] = static_cast<u8>((ls & 15u) | ((lm & 15u) << 4));
        s[j - 4] = static_cast<u8>(s[j - 4] | ((ls >> 4) << 6));
        s[j] = static_cast<u8>(s[j] | ((lm >> 4) << 6));
      }
    }
  }
  // Codes once more, against the scale and minimum as stored. A sub-block whose stored scale is 0 keeps its first
  // codes.
  TW_MEMBER static void requantize(const float* x, const u8* data, int j, u8* code) {
    const float d = mul_rn(f16_bits_to_f32(read16(data)), static_cast<float>(minima_scale(data, j)));
    if (d == 0.0f) return;
    const float m = mul_rn(f16_bits_to_f32(read16(data + 2)), static_cast<float>(minima_minimum(data, j)));
    for (int i = 0; i < 32; ++i) code[i] = static_cast<u8>(quantize(div_rn(add_rn(x[i], m), d), 15));
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    Line lines[8];
    u8 code[256];
    TW_NO_UNROLL for (int j = 0; j < 8; ++j) lines[j] = search(x + 32 * j, code + 32 * j);
    pack_scales(lines, data);
    TW_NO_UNROLL for (int j = 0; j < 8; ++j) requantize(x + 32 * j, data, j, code + 32 * j);
    TW_NO_UNROLL for (int p = 0; p < 4; ++p) for (int l = 0; l < 32; ++l) data[16 + 32 * p + l] =
        static_cast<u8>(code[64 * p + l] | (code[64 * p + 32 + l] << 4));
  }

  TW_CONSTANTS(bool, kImportance = true);
  TW_MEMBER static void encode_weighted(const float* x, const float* importance, u8* data) {
    for (int i = 16; i < 144; ++i) data[i] = 0;
    search_with_minima<32, 15, 63>(
        x, importance, {},
        [&](u16 d, u16 dmin, const u8* scales, const u8* minima) { put_header(data, d, dmin, scales, minima); },
        [&](int i, u32 code) {
          u8& pair = data[16 + 32 * (i / 64) + i % 32];
          pair = static_cast<u8>(pair | (code << (4 * (i / 32 % 2))));
        });
  }

  // One lane per sub-block, its 32 elements in registers. The order of every sum is search()'s, so that lanes cannot
  // share one; codes stay floats, and the best line's are formed again from the trial that gave them.
  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 32; }
  TW_MEMBER static float quantized(float v) {  // quantize(v, 15): NaN gives 0; 1.5 * 2^23 aligns the ulp, 1
    return sub_rn(add_rn(min_number(max_number(v, 0.0f), 15.0f), 12582912.0f), 12582912.0f);
  }
  struct Fit {
    Line line;
    float inverse, low;  // of the trial whose codes are kept
  };
  struct Moments {
    float rms, w, x;  // sums of weights, of weight * x
    TW_MEMBER float weight(float v) const { return add_rn(rms, abs_f(v)); }
  };
  TW_MEMBER static float error_lanes(const float (&x)[32], const float (&code)[32], const Moments& sum, float scale,
                                     float low) {
    float total = 0.0f;
    TW_UNROLL for (int i = 0; i < 32; ++i) {
      const float difference = sub_rn(add_rn(mul_rn(scale, code[i]), low), x[i]);
      total = add_rn(total, mul_rn(sum.weight(x[i]), mul_rn(difference, difference)));
    }
    return total;
  }
  TW_MEMBER static void try_lanes(const float (&x)[32], const Moments& sum, float inverse, Fit& best,
                                  float& best_error) {
    const float low = -best.line.minimum;
    float code[32], sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
    TW_UNROLL for (int i = 0; i < 32; ++i) {
      code[i] = quantized(mul_rn(inverse, sub_rn(x[i], low)));
      const float wl = mul_rn(sum.weight(x[i]), code[i]);
      sum_l = add_rn(sum_l, wl);
      sum_l2 = add_rn(sum_l2, mul_rn(wl, code[i]));
      sum_xl = add_rn(sum_xl, mul_rn(wl, x[i]));
    }
    const float determinant = sub_rn(mul_rn(sum.w, sum_l2), mul_rn(sum_l, sum_l));
    if (!(determinant > 0.0f)) return;
    float scale = div_rn(sub_rn(mul_rn(sum.w, sum_xl), mul_rn(sum.x, sum_l)), determinant);
    float intercept = div_rn(sub_rn(mul_rn(sum_l2, sum.x), mul_rn(sum_l, sum_xl)), determinant);
    if (intercept > 0.0f) {
      intercept = 0.0f;
      scale = div_rn(sum_xl, sum_l2);
    }
    const float e = error_lanes(x, code, sum, scale, intercept);
    if (!(e < best_error)) return;
    best_error = e;
    best = {{scale, -intercept}, inverse, low};
  }
  TW_MEMBER static Fit search_lanes(const float (&x)[32]) {
    float squares = 0.0f;
    TW_UNROLL for (int i = 0; i < 32; ++i) squares = add_rn(squares, mul_rn(x[i], x[i]));
    Moments sum{sqrt_rn(div_rn(squares, 32.0f)), 0.0f, 0.0f};
    float low = x[0], high = x[0];
    sum.w = sum.weight(x[0]), sum.x = mul_rn(sum.w, x[0]);
    TW_UNROLL for (int i = 1; i < 32; ++i) {
      if (x[i] < low) low = x[i];
      if (x[i] > high) high = x[i];
      sum.w = add_rn(sum.w, sum.weight(x[i]));
      sum.x = add_rn(sum.x, mul_rn(sum.weight(x[i]), x[i]));
    }
    if (low > 0.0f) low = 0.0f;
    if (high == low) return {{0.0f, -low}, 0.0f, 0.0f};  // all codes 0
    const float first = div_rn(15.0f, sub_rn(high, low));
    Fit best{{div_rn(1.0f, first), -low}, first, low};
    float code[32];
    TW_UNROLL for (int i = 0; i < 32; ++i) code[i] = quantized(mul_rn(first, sub_rn(x[i], low)));
    float best_error = error_lanes(x, code, sum, best.line.scale, low);
    TW_NO_UNROLL for (int step = 0; step <= 20; ++step) {
      const float steps = add_rn(add_rn(-1.0f, mul_rn(0.1f, static_cast<float>(step))), 15.0f);
      try_lanes(x, sum, div_rn(steps, sub_rn(high, -best.line.minimum)), best, best_error);
    }
    return best;
  }
  // The header of a block in all of its eight lanes, and this lane's scale and minimum as stored.
  TW_MEMBER static u32x4 header_lanes(const Line& line, int lane, u32& ls, u32& lm) {
    float top_scale = max_number(0.0f, line.scale), top_minimum = max_number(0.0f, line.minimum);
    TW_UNROLL for (int d = 1; d < 8; d *= 2) {
      top_scale = max_number(top_scale, shuffle_xor(top_scale, d));
      top_minimum = max_number(top_minimum, shuffle_xor(top_minimum, d));
    }
    const float inverse_scale = top_scale > 0.0f ? div_rn(63.0f, top_scale) : 0.0f;
    const float inverse_minimum = top_minimum > 0.0f ? div_rn(63.0f, top_minimum) : 0.0f;
    ls = min2(static_cast<u32>(to_int(rint_even(mul_rn(inverse_scale, line.scale)))) & 255u, 63u);
    lm = min2(static_cast<u32>(to_int(rint_even(mul_rn(inverse_minimum, line.minimum)))) & 255u, 63u);
    // Byte `lane` of three words, from this lane and the one four after it.
    const u32 far_scale = shuffle_xor(ls, 4), far_minimum = shuffle_xor(lm, 4);
    const int shift = 8 * (lane % 4);
    u32 a = lane < 4 ? (ls | ((far_scale >> 4) << 6)) << shift : 0u;
    u32 b = lane < 4 ? (lm | ((far_minimum >> 4) << 6)) << shift : 0u;
    u32 c = lane < 4 ? ((far_scale & 15u) | ((far_minimum & 15u) << 4)) << shift : 0u;
    TW_UNROLL for (int d = 1; d < 8; d *= 2) a |= shuffle_xor(a, d), b |= shuffle_xor(b, d), c |= shuffle_xor(c, d);
    return {f32_to_f16_bits(div_rn(top_scale, 63.0f)) |
                (static_cast<u32>(f32_to_f16_bits(div_rn(top_minimum, 63.0f))) << 16),
            a, b, c};
  }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&x)[E], int lane, u8* data, u8*, float, int) {
    const Fit fit = search_lanes(x);
    u32 ls, lm;
    const u32x4 header = header_lanes(fit.line, lane, ls, lm);
    const float d = mul_rn(low_half<tw::f16>(header.x), static_cast<float>(ls));
    const float m = mul_rn(high_half<tw::f16>(header.x), static_cast<float>(lm));
    u32 words[8];
    TW_UNROLL for (int i = 0; i < 8; ++i) words[i] = 0;
    TW_UNROLL for (int i = 0; i < 32; ++i) {
      const float v = d == 0.0f ? mul_rn(fit.inverse, sub_rn(x[i], fit.low)) : div_rn(add_rn(x[i], m), d);
      words[i / 4] |= static_cast<u32>(to_int(quantized(v))) << (8 * (i % 4));
    }
    // The sub-blocks of a pair share bytes; each lane writes half of them.
    const int half = lane % 2;
    u32 out[4];
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const u32 other = shuffle_xor(half ? words[i] : words[4 + i], 1);
      out[i] = half ? other | (words[4 + i] << 4) : words[i] | (other << 4);
    }
    *reinterpret_cast<u32x4*>(data + 16 + 16 * lane) = {out[0], out[1], out[2], out[3]};
    if (lane == 0) *reinterpret_cast<u32x4*>(data) = header;
  }

  template <class Element>
  using Tile = MinimaTile<Element, 4>;
};

}  // namespace tw::fmt
