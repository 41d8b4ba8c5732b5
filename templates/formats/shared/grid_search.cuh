// SPDX-License-Identifier: Apache-2.0
// ggml's searches for formats of lists of vectors (grids.cuh). Those of IQ3_S, IQ3_XXS and IQ2_S take an importance
// matrix or none, and are encoder "ggml" (quantize_row_iq3_s_impl and its like); those of IQ2_XS and IQ2_XXS need one.
// The float operations are in ggml's order, so that the bytes agree, but where a sub-block of IQ3_S is zero and others
// of its block are not: what follows it ggml puts into its place.
//
// Of each sub-block's trial scales that is kept which is best by weighted least squares for the vectors that it leads
// to. Under a scale, magnitudes become odd numbers, (1, 3, ...) times it; where the list has no such vector, the one of
// least weighted error is taken of those that are nearest, by the kNear least distances that occur. F has, beside a
// format's of grids.cuh,
//   Search::kTrials, apart()     so many scales on either side of the first, and by how much their inverses differ
//   Search::kLevels              whether the first is the best for numbers of steps alone (k_search.cuh)
//   Search::kNear, kMost, again()    see above; how many vectors are near to any at most; which vectors are looked for
//                                again under the best scale
//   Search::least(), more()      a largest magnitude below which all is zero; by how much the half is larger
//   Search::kSquares             so many times the block's mean square are added to an element's, for its weight
//   Search::weight(square, mean) without importance, from an element's square and that multiple of the mean
#pragma once
#include "formats/shared/grids.cuh"
#include "formats/shared/k_search.cuh"

namespace tw::fmt {

// Under the best scale: those that the list did not have; if it lacked one, all; always all.
enum class GridAgain { unlisted, all_if_one, all };

// Element i of a list's entry.
template <class F>
TW_FN u32 list_field(u32 entry, int i) {
  return (entry >> (16 / F::kWide * i)) & (F::kWide == 4 ? 7u : 3u);
}
// Vectors near to one that the list does not have: by distance, then in the list's order.
template <class F>
struct NearVectors {
  using Search = typename F::Search;
  TW_CONSTANTS(int, kWide = F::kWide);
  u32 of = 0;  // its entry, and 1
  int count = 0;
  u16 index[Search::kMost];

  TW_MEMBER void find(u32 entry) {
    i32 squares[kWide][8];
    for (int i = 0; i < kWide; ++i)
      for (i32 c = 0; c < 8; ++c) {
        const i32 l = static_cast<i32>(list_field<F>(entry, i));
        squares[i][c] = (c - l) * (c - l);
      }
    u16 distance[F::kEntries];
    i32 least[Search::kNear];  // distances, ascending
    for (int k = 0; k < Search::kNear; ++k) least[k] = 1 << 20;
    for (u32 j = 0; j < F::kEntries; ++j) {
      i32 d = 0;
      for (int i = 0; i < kWide; ++i) d += squares[i][list_field<F>(F::grid(j), i)];
      distance[j] = static_cast<u16>(d);
      for (int k = 0; k < Search::kNear && d != least[k]; ++k)
        if (d < least[k]) {
          const i32 further = least[k];
          least[k] = d, d = further;
        }
    }
    of = entry + 1, count = 0;
    for (int k = 0; k < Search::kNear; ++k)
      for (u32 j = 0; j < F::kEntries && count < Search::kMost; ++j)
        if (distance[j] == least[k]) index[count++] = static_cast<u16>(j);
  }
  // Those near to `entry`; each(index) for every one.
  template <class Each>
  TW_MEMBER static void around(u32 entry, const Each& each) {
#if defined(__CUDACC__)
    NearVectors near;
#else
    // The same ones are asked for again and again.
    static thread_local NearVectors memory[512];
    NearVectors& near = memory[(entry * 2654435761u) >> 23];
#endif
    if (near.of != entry + 1) near.find(entry);
    for (int j = 0; j < near.count; ++j) each(near.index[j]);
  }
};

template <class F>
struct GridSearch {
  TW_CONSTANTS(int, kSize = F::kGroup, kWide = F::kWide, kVectors = kSize / kWide, kBitsEach = 16 / kWide);
  TW_CONSTANTS(int, kNumbers = kWide == 4 ? 8 : 3);  // that a magnitude may become: 1, 3 ...
  using Search = typename F::Search;

  float v[kSize], weight[kSize], root[kSize];  // magnitudes; weights; their square roots
  u32 signs[kSize / 8];

  struct Choice {
    u32 index[kVectors];
    bool listed[kVectors];  // whether the list had the vector
    TW_MEMBER i32 number(int i) const {
      return 2 * static_cast<i32>(list_field<F>(F::grid(index[i / kWide]), i % kWide)) + 1;
    }
  };
  struct Fit {
    float qx = 0.0f, q2 = 0.0f;
  };
  TW_MEMBER Fit fit(const Choice& choice) const {
    Fit fit;
    for (int i = 0; i < kSize; ++i) {
      const float q = static_cast<float>(choice.number(i));
      fit.qx = add_rn(fit.qx, mul_rn(mul_rn(weight[i], v[i]), q));
      fit.q2 = add_rn(fit.q2, mul_rn(mul_rn(weight[i], q), q));
    }
    return fit;
  }
  // The vector for those of number n under a scale and its inverse.
  TW_MEMBER void choose(int n, float scale, float inverse, Choice& choice) const {
    const float *const x = v + kWide * n, *const w = root + kWide * n;
    u32 entry = 0;
    for (int i = 0; i < kWide; ++i) {
      const i32 l = clamped(mul_rn(0.5f, sub_rn(mul_rn(inverse, x[i]), 1.0f)), 0, kNumbers - 1);
      entry |= static_cast<u32>(l) << (kBitsEach * i);
    }
    const u32 at = list_index<F>(entry);
    choice.index[n] = at, choice.listed[n] = F::grid(at) == entry;
    if (choice.listed[n]) return;
    float best = 3.4028234663852886e38f;
    NearVectors<F>::around(entry, [&](u32 near) {
      float error = 0.0f;
      for (int i = 0; i < kWide; ++i) {
        const float q = static_cast<float>(2 * list_field<F>(F::grid(near), i) + 1);
        const float difference = sub_rn(mul_rn(scale, q), x[i]);
        error = add_rn(error, mul_rn(mul_rn(w[i], difference), difference));
      }
      if (error < best) best = error, choice.index[n] = near;
    });
  }
  // Magnitudes, signs and weights of a sub-block.
  TW_MEMBER void read(const float* x, const float* importance, float mean) {
    for (int i = 0; i < kSize; ++i) {
      const float square = mul_rn(x[i], x[i]);
      if (importance)
        weight[i] = mul_rn(importance[i], sqrt_rn(add_rn(mean, square)));
      else if constexpr (F::kEncoders == 2)
        weight[i] = Search::weight(square, mean);
      root[i] = sqrt_rn(weight[i]);
    }
    for (int n = 0; n < kSize / 8; ++n) {
      signs[n] = 0;
      int least = 0;
      float least_weighted = 0.0f;
      for (int i = 0; i < 8; ++i) {
        const float e = x[8 * n + i];
        v[8 * n + i] = e >= 0.0f ? e : -e;
        if (!(e >= 0.0f)) signs[n] |= 1u << i;
        const float weighted = mul_rn(mul_rn(weight[8 * n + i], e), e);
        if (i == 0 || weighted < least_weighted) least = i, least_weighted = weighted;
      }
      if (F::signs() == GridSigns::even && popcount(signs[n]) % 2 != 0)
        signs[n] ^= 1u << least, v[8 * n + least] = -v[8 * n + least];
    }
  }
  // Writes sub-block j's vectors and signs; its scale, 0 if all of it is zero.
  TW_MEMBER float encode_sub(u8* data, int j) {
    float largest = v[0];
    for (int i = 1; i < kSize; ++i)
      if (v[i] > largest) largest = v[i];
    if (!(largest >= Search::least()) || !(largest > 0.0f)) return 0.0f;
    constexpr float kTop = static_cast<float>(2 * kNumbers - 1);
    constexpr GridAgain kAgain = Search::again();
    Choice kept;
    for (int n = 0; n < kVectors; ++n) kept.index[n] = 0, kept.listed[n] = kAgain == GridAgain::unlisted;
    float scale = div_rn(largest, kTop), best = 0.0f;
    if constexpr (Search::kLevels) {
      u8 levels[kSize];
      scale = search_levels<kSize, kNumbers + 1>(v, weight, levels);
      largest = mul_rn(scale, static_cast<float>(kNumbers));
      if (!(largest > 0.0f)) return 0.0f;
    }
    TW_NO_UNROLL for (int step = -Search::kTrials; step <= Search::kTrials; ++step) {
      const float inverse = div_rn(add_rn(kTop, mul_rn(static_cast<float>(step), Search::apart())), largest);
      const float trial = div_rn(1.0f, inverse);
      Choice choice;
      for (int n = 0; n < kVectors; ++n) choose(n, trial, inverse, choice);
      const Fit f = fit(choice);
      if (!(f.q2 > 0.0f && mul_rn(f.qx, f.qx) > mul_rn(best, f.q2))) continue;
      scale = div_rn(f.qx, f.q2), best = mul_rn(scale, f.qx), kept = choice;
    }
    bool all_listed = true;
    for (int n = 0; n < kVectors; ++n) all_listed = all_listed && kept.listed[n];
    if ((kAgain == GridAgain::all || !all_listed) && scale > 0.0f) {
      const float inverse = div_rn(1.0f, scale);
      for (int n = 0; n < kVectors; ++n)
        if (kAgain != GridAgain::unlisted || !kept.listed[n]) choose(n, scale, inverse, kept);
      const Fit f = fit(kept);
      if (f.q2 > 0.0f) scale = div_rn(f.qx, f.q2);
    }
    if (scale < 0.0f) {
      scale = -scale;
      for (int n = 0; n < kSize / 8; ++n) signs[n] ^= 255u;
    }
    for (int n = 0; n < kSize / 8; ++n) {
      const u32 first = kept.index[kWide == 4 ? 2 * n : n],
                second = kWide == 4 ? kept.index[(2 * n + 1) % kVectors] : 0;
      F::put(data, kSize / 8 * j + n, first, second, signs[n]);
    }
    return scale;
  }
  TW_MEMBER static void encode(const float* x, const float* importance, u8* data) {
    constexpr int kSubs = 256 / kSize;
    for (int i = 0; i < F::kDataBytes; ++i) data[i] = 0;
    float squares = 0.0f;
    for (int i = 0; i < 256; ++i) squares = add_rn(squares, mul_rn(x[i], x[i]));
    const float mean = div_rn(mul_rn(static_cast<float>(Search::kSquares), squares), 256.0f);
    float scales[kSubs], most = 0.0f;
    TW_NO_UNROLL for (int j = 0; j < kSubs; ++j) {
      GridSearch search;
      search.read(x + kSize * j, importance ? importance + kSize * j : nullptr, mean);
      scales[j] = search.encode_sub(data, j);
      if (scales[j] > most || is_nan(scales[j])) most = scales[j];
    }
    if (most == 0.0f) {
      for (int i = 0; i < F::kDataBytes; ++i) data[i] = 0;
      return;
    }
    const float d = div_rn(most, 31.0f), inverse = div_rn(1.0f, d);
    F::put_half(data, f32_to_f16_bits(mul_rn(d, Search::more())));
    for (int j = 0; j < kSubs; ++j)
      F::put_step(data, j,
                  static_cast<u32>(clamped(mul_rn(0.5f, sub_rn(mul_rn(inverse, scales[j]), 1.0f)), 0, F::kSteps - 1)));
  }
};

// A format with encoder "plain", and ggml's search where importance is given. F::Search is its.
template <class F, int block_bytes, int size>
struct WeightedGridBlocks : GridBlocks<F, block_bytes, size> {
  TW_CONSTANTS(bool, kImportance = true);
  TW_MEMBER static void encode_weighted(const float* x, const float* importance, u8* data) {
    GridSearch<F>::encode(x, importance, data);
  }
};

// A format with both encoders.
template <class F, int block_bytes, int size>
struct SearchedGridBlocks : WeightedGridBlocks<F, block_bytes, size> {
  TW_CONSTANTS(int, kEncoders = 2);
  // Of "ggml" not derived: its search minimizes a weighted sum, and its scales may be larger than those of "plain". No
  // block of tests/templates exceeds it.
  static constexpr Error error(int i) {
    Error e = GridBlocks<F, block_bytes, size>::error(0);
    if (i == 1) e.amax = 2, e.outer *= 1.5, e.largest *= 0.5f;
    return e;
  }
  static constexpr const char* encoder_name(int i) { return i == 0 ? "plain" : "ggml"; }
  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float context, int encoder) {
    if (encoder == 0)
      GridBlocks<F, block_bytes, size>::encode(x, data, scales, context, 0);
    else
      GridSearch<F>::encode(x, nullptr, data);
  }
};

}  // namespace tw::fmt
