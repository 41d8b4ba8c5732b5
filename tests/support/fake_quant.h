// SPDX-License-Identifier: Apache-2.0
// What the fake quantizations have to compute, by tables and searches that share nothing with the library, and inputs
// with every kind of trouble.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace fake_quant_model {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kSizes[] = {8, 16, 32, 64, 128, 256};

// The value of `codes` ascending ones that is nearest, of two equally near ones that of the even code.
template <class Value>
double nearest(double v, int codes, const Value& value) {
  int best = 0;
  for (int c = 1; c < codes; ++c) {
    const double d = std::fabs(value(c) - v), least = std::fabs(value(best) - v);
    if (d < least || (d == least && c % 2 == 0)) best = c;
  }
  return value(best);
}
inline double e4m3(double v) {
  return nearest(std::min(v, 448.0), 127,
                 [](int c) { return c < 8 ? std::ldexp(c, -9) : std::ldexp(8 + c % 8, c / 8 - 10); });
}
inline double e2m1(double v) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return v < 6 ? nearest(v, 8, [&](int c) { return kValues[c]; }) : 6;  // a NaN is not
}

inline float scale_of(float largest, float amax) {
  if (!(amax > 0 && amax < kInf)) return 1;
  const float g = amax / 2688.0f, r = largest / (6.0f * g);
  const float s = static_cast<float>(e4m3(std::isnan(r) ? 448.0 : std::min(r, 448.0f))) * g;
  return s < 1e-5f ? 1 : s;
}
inline float fake(float x, float scale) {
  const float inverse = 1.0f / scale, q = static_cast<float>(e2m1(std::fabs(x) * inverse));
  return (x >= 0 ? q : -q) * scale;
}

// Blocks begin anew in each row.
inline std::vector<float> fake_quantized(const std::vector<float>& x, std::int64_t cols, int block, float amax) {
  std::vector<float> y(x.size());
  const auto size = static_cast<std::int64_t>(x.size());
  for (std::int64_t row = 0; row < size; row += cols)
    for (std::int64_t col = 0; col < cols; col += block) {
      const std::int64_t begin = row + col, end = row + std::min(col + block, cols);
      float largest = 0;
      for (std::int64_t i = begin; i < end; ++i)
        largest = std::fmax(largest, std::fabs(x[static_cast<std::size_t>(i)]));
      const float scale = scale_of(largest, amax);
      for (std::int64_t i = begin; i < end; ++i)
        y[static_cast<std::size_t>(i)] = fake(x[static_cast<std::size_t>(i)], scale);
    }
  return y;
}

constexpr float kAmaxes[] = {2688.0f, 3.0f, 1e6f, 1e-10f, 1e-42f, 0.0f, -5.0f, 3.4e38f, kNan, kInf};

// A kind of trouble for each stretch of `block` elements, under `amax`.
inline std::vector<float> troubled(std::int64_t count, int block, float amax, unsigned seed) {
  constexpr float kHalves[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const float g = amax / 2688.0f;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const int at = static_cast<int>(i % block), kind = static_cast<int>((i / block * 5 + seed) % 22);
    const auto stretch = static_cast<unsigned>(i / block);
    const float sign = (static_cast<std::uint64_t>(i) / 8) % 2 ? -1.0f : 1.0f;
    float v = normal(random);
    // Midpoints under a scale that E4M3 holds, and the floats beside them.
    const float scale =
        g * std::ldexp(1.0f + 0.125f * static_cast<float>(stretch / 22 % 8), static_cast<int>(stretch % 11) - 3);
    const float midpoint = sign * kHalves[i % 8] * scale;
    if (kind == 0) v = 0;
    if (kind == 1) v = i % 2 ? -0.0f : 0.0f;
    if (kind == 2) v = midpoint;
    if (kind == 3) v = at % 8 == 7 ? midpoint : std::nextafter(midpoint, random() % 2 ? kInf : -kInf);
    if (kind == 4) v = sign * kHalves[i % 8];  // under a scale of 1, for amax of 2688
    // The scale lies between two codes, whose distance doubles with each power of two.
    if (kind == 5)
      v = at == 3
              ? 6 * g * std::ldexp(17.0f + 2 * static_cast<float>(stretch / 22 % 8), static_cast<int>(stretch % 12) - 9)
              : 0.3f * v * g;
    if (kind == 6) v *= g * std::ldexp(1.0f, -static_cast<int>(stretch % 14));  // subnormal scales, and beneath them
    if (kind == 7) v = at == 5 ? 6 * g * std::ldexp(static_cast<float>(1 + stretch / 22 % 16), -10) : 0.1f * v * g;
    if (kind == 8) v *= 6e-5f;  // about the least scale
    if (kind == 9) v = at % 2 ? 6e-5f : 6.1e-5f;
    if (kind == 10) v *= 1e-40f;
    if (kind == 11) v *= 1e38f;
    if (kind == 12) v *= 2 * amax;  // clipped
    if (kind == 13 && at == block / 2) v = kInf;
    if (kind == 14 && at == block - 1) v = -kInf;
    if (kind == 15 && at == 1) v = kNan;
    if (kind == 16) v = kNan;
    if (kind == 17) v = at == 0 ? 300.0f : 0.01f * v;
    if (kind == 18) v *= 0.3f * amax;
    if (kind == 19) v = -amax;
    x[static_cast<std::size_t>(i)] = v;
  }
  return x;
}

}  // namespace fake_quant_model
