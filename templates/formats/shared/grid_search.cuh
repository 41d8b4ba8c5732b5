// SPDX-License-Identifier: Apache-2.0
// Encoder "ggml" of formats of lists of vectors (grids.cuh) whose searches in ggml need no importance matrix, and take
// one (quantize_row_iq3_s_impl, quantize_row_iq3_xxs_impl, quantize_row_iq2_s_impl). The float operations are in ggml's
// order, so that the bytes agree, but where a sub-block of IQ3_S is zero and others of its block are not: what follows
// it ggml puts into its place.
//
// Of each sub-block's trial scales that is kept which is best by weighted least squares for the vectors that it leads
// to. Under a scale, magnitudes become odd numbers, (1, 3, ...) times it; where the list has no such vector, the one of
// least weighted error is taken of those that are nearest, by the kNear least distances that occur. F has, beside a
// format's of grids.cuh,
//   Search::kTrials, apart()     so many scales on either side of the first, and by how much their inverses differ
//   Search::kNear, kAll          see above; whether all vectors are looked for again under the best scale, or only
//   those
//                                that the list did not have
//   Search::least(), more()      a largest magnitude below which all is zero; by how much the half is larger
//   Search::weight(square, mean) without importance, from an element's square and the block's mean of them
#pragma once
#include "formats/shared/grids.cuh"

namespace tw::fmt {

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
    TW_MEMBER i32 number(int i) const { return 2 * static_cast<i32>(field(F::grid(index[i / kWide]), i % kWide)) + 1; }
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
  // Vectors near to one that the list does not have: by distance, then in the list's order.
  struct Near {
    u32 of = 0;  // its entry, and 1
    int count = 0;
    u16 index[72];  // of iq2_s 70 at most, of the others 38

    TW_MEMBER void find(u32 entry) {
      i32 squares[kWide][8];
      for (int i = 0; i < kWide; ++i)
        for (i32 c = 0; c < 8; ++c) {
          const i32 l = static_cast<i32>(field(entry, i));
          squares[i][c] = (c - l) * (c - l);
        }
      u16 distance[F::kEntries];
      i32 least[Search::kNear];  // distances, ascending
      for (int k = 0; k < Search::kNear; ++k) least[k] = 1 << 20;
      for (u32 j = 0; j < F::kEntries; ++j) {
        i32 d = 0;
        for (int i = 0; i < kWide; ++i) d += squares[i][field(F::grid(j), i)];
        distance[j] = static_cast<u16>(d);
        for (int k = 0; k < Search::kNear && d != least[k]; ++k)
          if (d < least[k]) {
            const i32 further = least[k];
            least[k] = d, d = further;
          }
      }
      of = entry + 1, count = 0;
      for (int k = 0; k < Search::kNear; ++k)
        for (u32 j = 0; j < F::kEntries && count < 72; ++j)
          if (distance[j] == least[k]) index[count++] = static_cast<u16>(j);
    }
  };
  TW_MEMBER static u32 field(u32 entry, int i) { return (entry >> (kBitsEach * i)) & (kWide == 4 ? 7u : 3u); }
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
#if defined(__CUDACC__)
    Near near;
#else
    // The same ones are asked for again and again.
    static thread_local Near memory[512];
    Near& near = memory[(entry * 2654435761u) >> 23];
#endif
    if (near.of != entry + 1) near.find(entry);
    float best = 3.4028234663852886e38f;
    for (int j = 0; j < near.count; ++j) {
      float error = 0.0f;
      for (int i = 0; i < kWide; ++i) {
        const float q = static_cast<float>(2 * field(F::grid(near.index[j]), i) + 1);
        const float difference = sub_rn(mul_rn(scale, q), x[i]);
        error = add_rn(error, mul_rn(mul_rn(w[i], difference), difference));
      }
      if (error < best) best = error, choice.index[n] = near.index[j];
    }
  }
  // Magnitudes, signs and weights of a sub-block.
  TW_MEMBER void read(const float* x, const float* importance, float mean) {
    for (int i = 0; i < kSize; ++i) {
      const float square = mul_rn(x[i], x[i]);
      weight[i] = importance ? mul_rn(importance[i], sqrt_rn(add_rn(mean, square))) : Search::weight(square, mean);
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
    Choice kept;
    for (int n = 0; n < kVectors; ++n) kept.index[n] = 0, kept.listed[n] = !Search::kAll;
    float scale = div_rn(largest, kTop), best = 0.0f;
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
    if (!all_listed && scale > 0.0f) {
      const float inverse = div_rn(1.0f, scale);
      for (int n = 0; n < kVectors; ++n)
        if (Search::kAll || !kept.listed[n]) choose(n, scale, inverse, kept);
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
    const float mean = div_rn(mul_rn(2.0f, squares), 256.0f);  // twice it
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

// A format with both encoders. F::Search is its.
template <class F, int block_bytes, int size>
struct SearchedGridBlocks : GridBlocks<F, block_bytes, size> {
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
  TW_CONSTANTS(bool, kImportance = true);
  TW_MEMBER static void encode_weighted(const float* x, const float* importance, u8* data) {
    GridSearch<F>::encode(x, importance, data);
  }
};

}  // namespace tw::fmt
