// SPDX-License-Identifier: Apache-2.0
#include "quantize/tiles.h"

#include <tilewright/error.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tilewright::quantize {
namespace {

// Vectors of the compiler, so that four rows by two vectors of sums stay in registers whatever it optimizes.
template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(32)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(32)));
};

template <class T, bool minus>
[[gnu::always_inline]] inline void product(const T* a, const T* b, std::int64_t depth, double* c) {
  using V = typename VectorOf<T>::type;
  constexpr std::int64_t lanes = 32 / sizeof(T), width = 2 * lanes;
  for (std::int64_t j = 0; j < kTile; j += width)
    for (std::int64_t i = 0; i < kTile; i += 4)
      for (std::int64_t first = 0; first < depth; first += kTile) {
        V s00{}, s01{}, s10{}, s11{}, s20{}, s21{}, s30{}, s31{};
        for (std::int64_t t = first; t < first + kTile; ++t) {
          V left, right;
          std::memcpy(&left, b + t * kTile + j, sizeof left);
          std::memcpy(&right, b + t * kTile + j + lanes, sizeof right);
          const T* row = a + t * kTile + i;
          s00 += row[0] * left, s01 += row[0] * right;
          s10 += row[1] * left, s11 += row[1] * right;
          s20 += row[2] * left, s21 += row[2] * right;
          s30 += row[3] * left, s31 += row[3] * right;
        }
        const V sums[4][2] = {{s00, s01}, {s10, s11}, {s20, s21}, {s30, s31}};
        for (int r = 0; r < 4; ++r) {
          T values[width];
          std::memcpy(values, sums[r], sizeof values);
          double* to = c + (i + r) * kTile + j;
          for (std::int64_t q = 0; q < width; ++q)
            to[q] = minus ? to[q] - static_cast<double>(values[q]) : to[q] + static_cast<double>(values[q]);
        }
      }
}

#if defined(__x86_64__)
template <class T, bool minus>
[[gnu::target("avx2")]] void product_avx2(const T* a, const T* b, std::int64_t depth, double* c) {
  product<T, minus>(a, b, depth, c);
}
#endif

template <class T, bool minus>
void dispatch(const T* a, const T* b, std::int64_t depth, double* c) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return product_avx2<T, minus>(a, b, depth, c);
#endif
  product<T, minus>(a, b, depth, c);
}

}  // namespace

void add_product(const float* a, const float* b, std::int64_t depth, double* c) {
  dispatch<float, false>(a, b, depth, c);
}
void add_product(const double* a, const double* b, std::int64_t depth, double* c) {
  dispatch<double, false>(a, b, depth, c);
}
void subtract_product(const double* a, const double* b, std::int64_t depth, double* c) {
  dispatch<double, true>(a, b, depth, c);
}

int thread_count(int threads) {
  if (threads < 0 || threads > 256)
    throw Error(ErrorCode::invalid_argument, "threads", std::to_string(threads), "1 to 256, or 0 for all cores");
  return threads ? threads : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 256);
}

}  // namespace tilewright::quantize
