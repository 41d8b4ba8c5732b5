// SPDX-License-Identifier: Apache-2.0
// ggml's searches for the scales of K-quants (ggml-quants.c), each float operation in the order that it has there, so
// that the bytes agree. `importance` has one weight of at least 0 for each element of a block, or is null:
//   null   quantize_row_q2_K_ref, q3_K, q5_K, q6_K: encoder "ggml"
//   given  quantize_row_q2_K_impl, q3_K, q4_K, q5_K, q6_K: encode_weighted(), on the host
// What ggml asserts against, an element that is no number or so large that a sum of the search could overflow, is left
// to the plain encoder (formats/shared/k_quants.cuh), a block at a time.
#pragma once
#include "formats/shared/k_quants.cuh"

namespace tw::fmt {

TW_FN constexpr float largest_searched() { return 1073741824.0f; }
TW_FN constexpr float least_searched() { return 1e-15f; }  // a sub-block below it is 0 (GROUP_MAX_EPS)

TW_FN bool searchable(const float* x) {
  for (int i = 0; i < 256; ++i)
    if (!(abs_f(x[i]) <= largest_searched())) return false;
  return true;
}
TW_FN i32 nearest(float v) { return to_int(rint_even(v)); }

// The errors of searched encoders. They minimize weighted sums of squares or of magnitudes and not the largest error,
// so these bounds are not derived: two steps, and the plain encoder's error of scales. No block of tests/templates
// exceeds them.
constexpr Error searched_minima_error(int top, int top_scale) {
  return {0,
          0,
          2.0 / top,
          1.5 / top_scale + 3 * half_rounding(),
          (top + 1) * top_scale * half_least(),
          static_cast<float>(top_scale) * largest_half()};
}
constexpr Error searched_signed_error(int half, int top_scale) {
  return {0,
          2.0 / half + half_rounding(),
          0,
          1.0 / top_scale,
          half * top_scale * half_least(),
          static_cast<float>(half * top_scale) * largest_half()};
}

struct SubLine {  // x ~ scale * code - minimum
  float scale, minimum;
};

// Of the lines through x, by weighted least squares for the codes of trial scales (first + by * step + top) / range,
// that of the least weighted error, of squares or magnitudes; and its codes (make_qkx2_quants, make_qkx3_quants).
struct Trials {
  float first, by;
  int steps;
  bool magnitudes;
};
template <int n, i32 top>
TW_FN SubLine search_line(const float* x, const float* weight, const Trials& trials, u8* code) {
  float low = x[0], high = x[0], sum_w = weight[0], sum_x = mul_rn(weight[0], x[0]);
  for (int i = 1; i < n; ++i) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
    sum_w = add_rn(sum_w, weight[i]);
    sum_x = add_rn(sum_x, mul_rn(weight[i], x[i]));
  }
  if (low > 0.0f) low = 0.0f;
  if (high <= low) {
    for (int i = 0; i < n; ++i) code[i] = 0;
    return {0.0f, -low};
  }
  u8 trial[n];
  float best = 0.0f;
  const auto error = [&](float scale, float minimum) {
    float total = 0.0f;
    for (int i = 0; i < n; ++i) {
      const float off = sub_rn(add_rn(mul_rn(scale, static_cast<float>(trial[i])), minimum), x[i]);
      total = add_rn(total, mul_rn(weight[i], trials.magnitudes ? abs_f(off) : mul_rn(off, off)));
    }
    return total;
  };
  const auto take = [&](float inverse) {
    for (int i = 0; i < n; ++i) trial[i] = static_cast<u8>(clamped(mul_rn(inverse, sub_rn(x[i], low)), 0, top));
  };
  const auto keep = [&](float e) {
    best = e;
    for (int i = 0; i < n; ++i) code[i] = trial[i];
  };
  const float inverse = div_rn(static_cast<float>(top), sub_rn(high, low));
  float scale = div_rn(1.0f, inverse);
  take(inverse);
  keep(error(scale, low));
  TW_NO_UNROLL for (int step = 0; step <= trials.steps; ++step) {
    const float steps =
        add_rn(add_rn(trials.first, mul_rn(trials.by, static_cast<float>(step))), static_cast<float>(top));
    take(div_rn(steps, sub_rn(high, low)));
    float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
    for (int i = 0; i < n; ++i) {
      const float l = static_cast<float>(trial[i]), wl = mul_rn(weight[i], l);
      sum_l = add_rn(sum_l, wl);
      sum_l2 = add_rn(sum_l2, mul_rn(wl, l));
      sum_xl = add_rn(sum_xl, mul_rn(wl, x[i]));
    }
    const float determinant = sub_rn(mul_rn(sum_w, sum_l2), mul_rn(sum_l, sum_l));
    if (!(determinant > 0.0f)) continue;
    float this_scale = div_rn(sub_rn(mul_rn(sum_w, sum_xl), mul_rn(sum_x, sum_l)), determinant);
    float this_low = div_rn(sub_rn(mul_rn(sum_l2, sum_x), mul_rn(sum_l, sum_xl)), determinant);
    if (this_low > 0.0f) this_low = 0.0f, this_scale = div_rn(sum_xl, sum_l2);
    const float e = error(this_scale, this_low);
    if (e < best) keep(e), scale = this_scale, low = this_low;
  }
  return {scale, -low};
}

// The scale for codes of -half to half - 1, which are stored plus half (make_qx_quants, rmse_type 1). weight null: x^2.
template <i32 half>
TW_FN float search_scale(const float* x, const float* weight, u8* code) {
  float extreme = 0.0f;
  for (int i = 0; i < 16; ++i)
    if (abs_f(x[i]) > abs_f(extreme)) extreme = x[i];
  if (abs_f(extreme) < least_searched()) {
    for (int i = 0; i < 16; ++i) code[i] = 0;
    return 0.0f;
  }
  float scale = 0.0f, best = 0.0f;
  const auto attempt = [&](float inverse, bool always) {
    float sum_xl = 0.0f, sum_l2 = 0.0f;
    for (int i = 0; i < 16; ++i) {
      const float l = static_cast<float>(clamped(mul_rn(inverse, x[i]), -half, half - 1));
      const float w = weight ? weight[i] : mul_rn(x[i], x[i]);
      sum_xl = add_rn(sum_xl, mul_rn(mul_rn(w, x[i]), l));
      sum_l2 = add_rn(sum_l2, mul_rn(mul_rn(w, l), l));
    }
    if (!always && !(sum_l2 > 0.0f && mul_rn(sum_xl, sum_xl) > mul_rn(best, sum_l2))) return;
    for (int i = 0; i < 16; ++i) code[i] = static_cast<u8>(half + clamped(mul_rn(inverse, x[i]), -half, half - 1));
    scale = sum_l2 != 0.0f ? div_rn(sum_xl, sum_l2) : 0.0f;
    best = mul_rn(scale, sum_xl);
  };
  attempt(div_rn(static_cast<float>(-half), extreme), true);
  TW_NO_UNROLL for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float steps = add_rn(static_cast<float>(half), mul_rn(0.1f, static_cast<float>(step)));
    attempt(div_rn(-steps, extreme), false);
  }
  return scale;
}

// The same by changing one code at a time, as long as that helps and five times at most (make_q3_quants).
template <i32 half>
TW_FN float improve_scale(const float* x, u8* code) {
  float extreme = 0.0f;
  for (int i = 0; i < 16; ++i)
    if (abs_f(x[i]) > abs_f(extreme)) extreme = x[i];
  if (abs_f(extreme) < least_searched()) {
    for (int i = 0; i < 16; ++i) code[i] = 0;
    return 0.0f;
  }
  const float inverse = div_rn(static_cast<float>(-half), extreme);
  float sum_xl = 0.0f, sum_l2 = 0.0f;
  i32 level[16];
  for (int i = 0; i < 16; ++i) {
    level[i] = clamped(mul_rn(inverse, x[i]), -half, half - 1);
    const float w = mul_rn(x[i], x[i]), l = static_cast<float>(level[i]);
    sum_xl = add_rn(sum_xl, mul_rn(mul_rn(w, x[i]), l));
    sum_l2 = add_rn(sum_l2, mul_rn(mul_rn(w, l), l));
  }
  bool changed = true;
  TW_NO_UNROLL for (int round = 0; round < 5 && changed; ++round) {
    changed = false;
    TW_NO_UNROLL for (int i = 0; i < 16; ++i) {
      const float w = mul_rn(x[i], x[i]), l = static_cast<float>(level[i]);
      float without = sub_rn(sum_xl, mul_rn(mul_rn(w, x[i]), l));
      if (!(without > 0.0f)) continue;
      float without2 = sub_rn(sum_l2, mul_rn(mul_rn(w, l), l));
      const i32 other = clamped(div_rn(mul_rn(x[i], without2), without), -half, half - 1);
      if (other == level[i]) continue;
      const float o = static_cast<float>(other);
      without = add_rn(without, mul_rn(mul_rn(w, x[i]), o));
      without2 = add_rn(without2, mul_rn(mul_rn(w, o), o));
      if (!(without2 > 0.0f && mul_rn(mul_rn(without, without), sum_l2) > mul_rn(mul_rn(sum_xl, sum_xl), without2)))
        continue;
      level[i] = other, sum_xl = without, sum_l2 = without2, changed = true;
    }
  }
  for (int i = 0; i < 16; ++i) code[i] = static_cast<u8>(level[i] + half);
  return sum_l2 > 0.0f ? div_rn(sum_xl, sum_l2) : 0.0f;
}

// The scale for codes of 0 to top of values that are not negative (make_qp_quants). Of one that is, as in IQ2_XXS, ggml
// takes the code as a byte.
template <int n, i32 top>
TW_FN float search_levels(const float* x, const float* weight, u8* code) {
  float most = 0.0f;
  for (int i = 0; i < n; ++i) most = most > x[i] ? most : x[i];
  if (most < least_searched()) {
    for (int i = 0; i < n; ++i) code[i] = 0;
    return 0.0f;
  }
  const auto error = [&](float inverse, bool first) {
    const float scale = div_rn(1.0f, inverse);
    float total = 0.0f;
    for (int i = 0; i < n; ++i) {
      const i32 level = nearest(mul_rn(inverse, x[i]));
      const float off = sub_rn(x[i], mul_rn(scale, static_cast<float>(first ? level & 255 : min2(top, level))));
      total = add_rn(total, mul_rn(mul_rn(weight[i], off), off));
    }
    return total;
  };
  float inverse = div_rn(static_cast<float>(top), most), best = error(inverse, true);
  TW_NO_UNROLL for (int step = -4; step <= 4; ++step) {
    if (step == 0) continue;
    const float trial = div_rn(add_rn(mul_rn(0.1f, static_cast<float>(step)), static_cast<float>(top)), most);
    const float e = error(trial, false);
    if (e < best) best = e, inverse = trial;
  }
  float sum_xl = 0.0f, sum_l2 = 0.0f;
  for (int i = 0; i < n; ++i) {
    const i32 level = min2(top, nearest(mul_rn(inverse, x[i])));
    code[i] = static_cast<u8>(level);
    const float w = weight[i], l = static_cast<float>(level);
    sum_xl = add_rn(sum_xl, mul_rn(mul_rn(w, x[i]), l));
    sum_l2 = add_rn(sum_l2, mul_rn(mul_rn(w, l), l));
  }
  bool changed = true;
  TW_NO_UNROLL for (int round = 0; round < 5 && changed; ++round) {
    changed = false;
    TW_NO_UNROLL for (int i = 0; i < n; ++i) {
      const float w = weight[i], l = static_cast<float>(code[i]);
      float without = sub_rn(sum_xl, mul_rn(mul_rn(w, x[i]), l));
      float without2 = sub_rn(sum_l2, mul_rn(mul_rn(w, l), l));
      if (!(without > 0.0f && without2 > 0.0f)) continue;
      const i32 other = min2(top, nearest(div_rn(mul_rn(x[i], without2), without)));
      if (other == code[i]) continue;
      const float o = static_cast<float>(other);
      without = add_rn(without, mul_rn(mul_rn(w, x[i]), o));
      without2 = add_rn(without2, mul_rn(mul_rn(w, o), o));
      if (!(mul_rn(mul_rn(without, without), sum_l2) > mul_rn(mul_rn(sum_xl, sum_xl), without2))) continue;
      code[i] = static_cast<u8>(other), sum_xl = without, sum_l2 = without2, changed = true;
    }
  }
  return sum_l2 > 0.0f ? div_rn(sum_xl, sum_l2) : 0.0f;
}

// What an element weighs where its importance is given, and the sum of a sub-block's weights.
TW_FN float mean_square(const float* x, float times) {
  float squares = 0.0f;
  for (int i = 0; i < 256; ++i) squares = add_rn(squares, mul_rn(x[i], x[i]));
  return div_rn(mul_rn(times, squares), 256.0f);
}
template <int size>
TW_FN float weigh(const float* x, const float* importance, float square, float* weight) {
  float sum = 0.0f;
  for (int i = 0; i < size; ++i) {
    weight[i] = mul_rn(importance[i], sqrt_rn(add_rn(square, mul_rn(x[i], x[i]))));
    sum = add_rn(sum, weight[i]);
  }
  return sum;
}

// Formats with minima: as encode_with_minima(), with the trials of the search without importance.
template <int size, i32 top, i32 top_scale, class Store, class Code>
TW_FN void search_with_minima(const float* x, const float* importance, const Trials& trials, const Store& store,
                              const Code& put) {
  constexpr int kSubs = 256 / size;
  constexpr i32 kMask = top_scale == 15 ? 15 : 255;
  if (!searchable(x)) return encode_with_minima<size, top, top_scale>(x, store, put);
  const float square = importance ? mean_square(x, size == 16 ? 1.0f : 2.0f) : 0.0f;
  float scale[kSubs], minimum[kSubs], sum[kSubs], most_scale = 0.0f, most_minimum = 0.0f;
  u8 code[256], scales[kSubs], minima[kSubs];
  TW_NO_UNROLL for (int j = 0; j < kSubs; ++j) {
    const float* sub = x + size * j;
    float weight[size], rms = 0.0f;
    if (importance) {
      sum[j] = weigh<size>(sub, importance + size * j, square, weight);
    } else {
      if (size == 32) {
        for (int i = 0; i < size; ++i) rms = add_rn(rms, mul_rn(sub[i], sub[i]));
        rms = sqrt_rn(div_rn(rms, 32.0f));
      }
      for (int i = 0; i < size; ++i) weight[i] = add_rn(rms, abs_f(sub[i]));
    }
    const SubLine line =
        search_line<size, top>(sub, weight, importance ? Trials{-0.9f, 0.05f, 36, false} : trials, code + size * j);
    scale[j] = line.scale, minimum[j] = line.minimum;
    if (scale[j] > most_scale) most_scale = scale[j];
    if (minimum[j] > most_minimum) most_minimum = minimum[j];
  }
  u16 d, dmin;
  if (importance) {
    d = f32_to_f16_bits(search_levels<kSubs, top_scale>(scale, sum, scales));
    dmin = f32_to_f16_bits(search_levels<kSubs, top_scale>(minimum, sum, minima));
  } else {
    d = f32_to_f16_bits(div_rn(most_scale, static_cast<float>(top_scale)));
    dmin = f32_to_f16_bits(div_rn(most_minimum, static_cast<float>(top_scale)));
    const float s = most_scale > 0.0f ? div_rn(static_cast<float>(top_scale), most_scale) : 0.0f;
    const float m = most_minimum > 0.0f ? div_rn(static_cast<float>(top_scale), most_minimum) : 0.0f;
    for (int j = 0; j < kSubs; ++j)
      scales[j] = static_cast<u8>(nearest(mul_rn(s, scale[j]))),
      minima[j] = static_cast<u8>(nearest(mul_rn(m, minimum[j])));
  }
  for (int j = 0; j < kSubs; ++j)
    scales[j] = static_cast<u8>(min2(scales[j] & kMask, top_scale)),
    minima[j] = static_cast<u8>(min2(minima[j] & kMask, top_scale));
  store(d, dmin, scales, minima);
  TW_NO_UNROLL for (int j = 0; j < kSubs; ++j) {
    const float step = mul_rn(f16_bits_to_f32(d), static_cast<float>(scales[j]));
    const float low = mul_rn(f16_bits_to_f32(dmin), static_cast<float>(minima[j]));
    for (int i = size * j; i < size * (j + 1); ++i)
      put(i, static_cast<u32>(step == 0.0f ? code[i] : clamped(div_rn(add_rn(x[i], low), step), 0, top)));
  }
}

// Formats without: as encode_signed(), of q3_k (half 4) and q6_k (half 32).
template <i32 half, i32 top_scale, class Store, class Code>
TW_FN void search_signed(const float* x, const float* importance, const Store& store, const Code& put) {
  constexpr bool q3 = half == 4;
  if (!searchable(x)) return encode_signed<half, top_scale>(x, store, put);
  const float square = q3 && importance ? mean_square(x, 2.0f) : 0.0f;
  float scale[16], sum[16], most = 0.0f;
  u8 code[256];
  TW_NO_UNROLL for (int j = 0; j < 16; ++j) {
    float weight[16];
    if (q3 && importance) {
      sum[j] = weigh<16>(x + 16 * j, importance + 16 * j, square, weight);
      scale[j] = search_scale<half>(x + 16 * j, weight, code + 16 * j);
    } else if (q3) {
      scale[j] = improve_scale<half>(x + 16 * j, code + 16 * j);
    } else {
      scale[j] = search_scale<half>(x + 16 * j, importance ? importance + 16 * j : nullptr, code + 16 * j);
    }
    if (abs_f(scale[j]) > abs_f(most)) most = scale[j];
  }
  i8 scales[16];
  u16 d = 0;
  if (q3 && importance) {
    u8 levels[16];
    d = f32_to_f16_bits(search_scale<top_scale>(scale, sum, levels));
    for (int j = 0; j < 16; ++j) scales[j] = static_cast<i8>(levels[j] - top_scale);
  } else if (q3 ? most != 0.0f : abs_f(most) >= least_searched()) {
    const float inverse = div_rn(static_cast<float>(-top_scale), most);
    d = f32_to_f16_bits(div_rn(1.0f, inverse));
    for (int j = 0; j < 16; ++j)
      scales[j] = static_cast<i8>(clamped(mul_rn(inverse, scale[j]), -top_scale, top_scale - 1));
  } else {
    for (int j = 0; j < 16; ++j) scales[j] = static_cast<i8>(q3 ? -top_scale : 0);
    if (!q3)
      for (int i = 0; i < 256; ++i) code[i] = 0;
  }
  store(d, scales);
  TW_NO_UNROLL for (int j = 0; j < 16; ++j) {
    const float step = mul_rn(f16_bits_to_f32(d), static_cast<float>(scales[j]));
    for (int i = 16 * j; i < 16 * (j + 1); ++i)
      put(i, static_cast<u32>(step == 0.0f ? code[i] : half + clamped(div_rn(x[i], step), -half, half - 1)));
  }
}

}  // namespace tw::fmt
