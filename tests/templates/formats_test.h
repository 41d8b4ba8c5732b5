// SPDX-License-Identifier: Apache-2.0
// A format's own encoder and decoder over rows of floats, and how their results compare.
#pragma once

#include <tilewright/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/types.cuh"

namespace formats_test {

using namespace tilewright;
using tw::u32;
using tw::u8;

inline const float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

struct Encoded {
  std::vector<u8> data, scales;
  float global = 1.0f;
  MutableOperand out() { return {data.data(), scales.data(), &global}; }
  Operand in() const { return {data.data(), scales.data(), &global}; }
};
inline Encoded encode(Format f, const std::vector<float>& x, std::int64_t cols, int encoder = 0, float global = 1.0f) {
  const auto rows = static_cast<std::int64_t>(x.size()) / cols;
  Encoded e;
  e.global = global;
  for (std::size_t i = 0; i < f.info().streams.size(); ++i) {
    const StreamSpec& s = f.info().streams[i];
    if (s.scope == Scope::tensor) continue;
    (s.stream == StreamName::data ? e.data : e.scales)
        .assign(static_cast<std::size_t>(f.stream_bytes(static_cast<int>(i), rows, cols)), 0xee);
  }
  f.info().encode(x.data(), rows, cols, e.out(), encoder);
  return e;
}
inline std::vector<float> decode(Format f, const Encoded& e, std::size_t count, std::int64_t cols) {
  std::vector<float> v(count);
  f.info().decode(e.in(), static_cast<std::int64_t>(count) / cols, cols, v.data());
  return v;
}
inline std::vector<float> round_trip(Format f, const std::vector<float>& x, std::int64_t cols, int encoder = 0,
                                     float global = 1.0f) {
  return decode(f, encode(f, x, cols, encoder, global), x.size(), cols);
}
inline std::vector<float> gauss(std::size_t n, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(random);
  return v;
}
inline float largest(const std::vector<float>& x) {
  float a = 0.0f;
  for (float v : x) a = std::max(a, std::fabs(v));
  return a;
}
// The same bits, except that every NaN is the same.
inline bool same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, 4) == 0; }
inline std::ptrdiff_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) return static_cast<std::ptrdiff_t>(i);
  return -1;
}
template <class T>
std::ptrdiff_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return 0;
  const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first;
  return at == a.end() ? -1 : at - a.begin();
}

}  // namespace formats_test
