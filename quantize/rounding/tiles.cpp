// SPDX-License-Identifier: Apache-2.0
#include "quantize/rounding/tiles.h"

#include <tilewright/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>

#include "support/must_be.h"
#endif

namespace tilewright::quantize {
namespace {

// What a product is: the definition, and what machines without the instructions below run.
template <class T, bool minus>
void portable(const T* a, const T* b, std::int64_t depth, double* c) {
  for (std::int64_t first = 0; first < depth; first += kTile)
    for (std::int64_t i = 0; i < kTile; ++i) {
      T sums[kTile] = {};
      for (std::int64_t t = first; t < first + kTile; ++t)
        for (std::int64_t j = 0; j < kTile; ++j) sums[j] = std::fma(a[t * kTile + i], b[t * kTile + j], sums[j]);
      for (std::int64_t j = 0; j < kTile; ++j) {
        const auto sum = static_cast<double>(sums[j]);
        c[i * kTile + j] = minus ? c[i * kTile + j] - sum : c[i * kTile + j] + sum;
      }
    }
}

#if defined(__x86_64__)

struct Floats {
  using V = __m256;
  [[gnu::target("avx2,fma")]] static V load(const float* from) { return _mm256_load_ps(from); }
  [[gnu::target("avx2,fma")]] static V all(float v) { return _mm256_set1_ps(v); }
  [[gnu::target("avx2,fma")]] static V fused(V a, V b, V sum) { return _mm256_fmadd_ps(a, b, sum); }
  [[gnu::target("avx2,fma")]] static void store(float* to, V v) { _mm256_store_ps(to, v); }
};
struct Doubles {
  using V = __m256d;
  [[gnu::target("avx2,fma")]] static V load(const double* from) { return _mm256_load_pd(from); }
  [[gnu::target("avx2,fma")]] static V all(double v) { return _mm256_set1_pd(v); }
  [[gnu::target("avx2,fma")]] static V fused(V a, V b, V sum) { return _mm256_fmadd_pd(a, b, sum); }
  [[gnu::target("avx2,fma")]] static void store(double* to, V v) { _mm256_store_pd(to, v); }
};

// Four rows by two vectors of sums stay in registers. Rows of a tile are 64 elements apart, and so share few sets of a
// cache: four columns of a and two vectors of b at a time are copied to where they are adjacent.
template <class T, bool minus>
[[gnu::target("avx2,fma")]] void fused(const T* a, const T* b, std::int64_t depth, double* c) {
  using Ops = std::conditional_t<sizeof(T) == 4, Floats, Doubles>;
  using V = typename Ops::V;
  constexpr std::int64_t lanes = 32 / sizeof(T), width = 2 * lanes;
  alignas(64) T quads[kTileSize];  // [i / 4][t][i % 4]
  alignas(64) T panel[kTile * width];
  for (std::int64_t first = 0; first < depth; first += kTile) {
    for (std::int64_t t = 0; t < kTile; ++t)
      for (std::int64_t i = 0; i < kTile; i += 4)
        std::memcpy(quads + i * kTile + 4 * t, a + (first + t) * kTile + i, 4 * sizeof(T));
    for (std::int64_t j = 0; j < kTile; j += width) {
      for (std::int64_t t = 0; t < kTile; ++t)
        std::memcpy(panel + t * width, b + (first + t) * kTile + j, width * sizeof(T));
      for (std::int64_t i = 0; i < kTile; i += 4) {
        V s00{}, s01{}, s10{}, s11{}, s20{}, s21{}, s30{}, s31{};
        const T* row = quads + i * kTile;
        for (std::int64_t t = 0; t < kTile; ++t, row += 4) {
          const V left = Ops::load(panel + t * width), right = Ops::load(panel + t * width + lanes);
          const V r0 = Ops::all(row[0]), r1 = Ops::all(row[1]), r2 = Ops::all(row[2]), r3 = Ops::all(row[3]);
          s00 = Ops::fused(r0, left, s00), s01 = Ops::fused(r0, right, s01);
          s10 = Ops::fused(r1, left, s10), s11 = Ops::fused(r1, right, s11);
          s20 = Ops::fused(r2, left, s20), s21 = Ops::fused(r2, right, s21);
          s30 = Ops::fused(r3, left, s30), s31 = Ops::fused(r3, right, s31);
        }
        alignas(64) T sums[4][width];
        Ops::store(sums[0], s00), Ops::store(sums[0] + lanes, s01);
        Ops::store(sums[1], s10), Ops::store(sums[1] + lanes, s11);
        Ops::store(sums[2], s20), Ops::store(sums[2] + lanes, s21);
        Ops::store(sums[3], s30), Ops::store(sums[3] + lanes, s31);
        for (std::int64_t r = 0; r < 4; ++r)
          for (std::int64_t q = 0; q < width; ++q) {
            double& to = c[(i + r) * kTile + j + q];
            to = minus ? to - static_cast<double>(sums[r][q]) : to + static_cast<double>(sums[r][q]);
          }
      }
    }
  }
}

[[gnu::target("avx2,fma")]] void fused_outer(const double* row, const double* d, std::int64_t count, double* sums) {
  constexpr std::int64_t lanes = 4, half = kTile / 2;
  for (std::int64_t first = 0; first < kTile; first += half) {
    __m256d column[half / lanes];  // in registers
    for (std::int64_t v = 0; v < half / lanes; ++v) column[v] = _mm256_loadu_pd(d + first + v * lanes);
    for (std::int64_t j = 0; j < count; ++j) {
      const __m256d factor = _mm256_set1_pd(row[j]);
      double* to = sums + j * kTile + first;
      for (std::int64_t v = 0; v < half / lanes; ++v)
        _mm256_storeu_pd(to + v * lanes, _mm256_fmadd_pd(factor, column[v], _mm256_loadu_pd(to + v * lanes)));
    }
  }
}

bool has_fma() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
#endif

template <class T, bool minus>
void product(const T* a, const T* b, std::int64_t depth, double* c) {
#if defined(__x86_64__)
  if (has_fma()) return fused<T, minus>(a, b, depth, c);
#endif
  portable<T, minus>(a, b, depth, c);
}

}  // namespace

void add_product(const float* a, const float* b, std::int64_t depth, double* c) {
  product<float, false>(a, b, depth, c);
}
void add_product(const double* a, const double* b, std::int64_t depth, double* c) {
  product<double, false>(a, b, depth, c);
}
void subtract_product(const double* a, const double* b, std::int64_t depth, double* c) {
  product<double, true>(a, b, depth, c);
}

void add_outer(const double* row, const double* d, std::int64_t count, double* sums) {
#if defined(__x86_64__)
  if (has_fma()) return fused_outer(row, d, count, sums);
#endif
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t r = 0; r < kTile; ++r) sums[j * kTile + r] = std::fma(row[j], d[r], sums[j * kTile + r]);
}

int thread_count(int threads) {
  if (threads < 0 || threads > 256) throw must_be("threads", threads, "1 to 256, or 0 for all cores");
  return threads ? threads : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 256);
}

}  // namespace tilewright::quantize
