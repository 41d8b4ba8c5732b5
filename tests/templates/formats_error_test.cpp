// SPDX-License-Identifier: Apache-2.0
// Tests what formats say of themselves (FormatInfo): how far an encoder may be off, and what becomes of a NaN and of an
// infinity. Every format of the list.
#include <tilewright/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats_test.h"
#include "support/catch.h"

using namespace formats_test;

namespace {

constexpr std::int64_t kCols = 1024;

// Rows of floats at one size. Kinds of trouble change every 256 columns.
std::vector<float> values(std::int64_t rows, double size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * kCols));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t kind = (i / 256 * 5 + seed) % 11, group = i / 16;
    double v = normal(random);
    if (kind == 1) v = std::fabs(v);
    if (kind == 2) v = 1 + 0.01 * v;                                        // far from zero
    if (kind == 3) v = std::ldexp(v, -static_cast<int>(group * 7 % 20));    // groups of very different sizes
    if (kind == 4) v = i % 16 == 3 ? 8 * (group % 2 ? 1 : -1) : 0.1 * v;    // one outlier
    if (kind == 5) v = static_cast<double>(random() % 33) / 16 - 1;         // ties, both extremes
    if (kind == 6) v = i % 16 == 5 ? -1 : i % 16 == 6 ? 1 : 5.0 / 6;        // E2M1's widest gap
    if (kind == 7) v = random() % 9 ? 0 : v;                                // few
    if (kind == 8) v = -1.99 + static_cast<double>(random() % 100) / 1000;  // just below a power of two
    if (kind == 9) v = std::ldexp(1.0, -static_cast<int>(random() % 30)) * (random() % 2 ? 1.07 : -1.07);
    if (kind == 10) v = static_cast<double>(i % 32) / 16 - 1;  // a ramp
    x[i] = static_cast<float>(v * size);
  }
  return x;
}

struct Extent {
  double amax = 0, low = 0, high = 0;
  void add(double v) { amax = std::max(amax, std::fabs(v)), low = std::min(low, v), high = std::max(high, v); }
};
// The extent of the elements that share the scale of (row, col): `columns` of a row (0: all), or of `rows` rows.
Extent extent_of(const std::vector<float>& x, std::int64_t row, std::int64_t col, std::int64_t rows,
                 std::int64_t columns) {
  Extent e;
  const auto all = static_cast<std::int64_t>(x.size()) / kCols;
  const std::int64_t first = columns ? col / columns * columns : 0, width = columns ? columns : kCols;
  for (std::int64_t r = row / rows * rows; r < std::min(all, row / rows * rows + rows); ++r)
    for (std::int64_t c = first; c < first + width; ++c) e.add(x[static_cast<std::size_t>(r * kCols + c)]);
  return e;
}

struct Scopes {
  std::int64_t rows = 1, columns = 0, outer_columns = 0;  // 0: the row
};
Scopes scopes_of(Format f, std::int64_t rows) {
  Scopes s{1, f.info().error_columns, f.block()};
  for (const StreamSpec& stream : f.info().streams) s.rows = std::max<std::int64_t>(s.rows, stream.rows);
  if (f.info().global_for && !f.info().error_columns) s.rows = rows;  // the tensor's scale is the innermost
  return s;
}

// The largest error over its bound; infinite where a result is no number.
double worst_ratio(Format f, const std::vector<float>& x, int encoder) {
  const auto rows = static_cast<std::int64_t>(x.size()) / kCols;
  const ErrorBound& bound = f.info().errors[static_cast<std::size_t>(encoder)];
  const float amax = largest(x);
  const auto y = round_trip(f, x, kCols, encoder, f.info().global_for ? f.info().global_for(amax) : 1.0f);
  const Scopes s = scopes_of(f, rows);
  double worst = 0;
  const std::int64_t step = s.columns ? s.columns : kCols;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < kCols; c += step) {
      const Extent group = extent_of(x, r, c, s.rows, s.columns);
      const double outer = f.info().global_for ? amax : extent_of(x, r, c, 1, s.outer_columns).amax;
      for (std::int64_t i = r * kCols + c; i < r * kCols + c + step; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double error = std::fabs(static_cast<double>(y[at]) - x[at]);
        const double most = bound.at(x[at], group.amax, group.high - group.low, outer);
        const double ratio = error == 0 ? 0 : error / most;
        worst = std::max(worst, std::isnan(ratio) ? INFINITY : ratio);
      }
    }
  return worst;
}

}  // namespace

TEST_CASE("encoders keep the error bounds that formats state, and come near them", "[formats]") {
  for (const Format f : Format::all()) {
    REQUIRE(f.info().errors.size() == f.info().encoders.size());
    for (int encoder = 0; encoder < static_cast<int>(f.info().encoders.size()); ++encoder) {
      INFO(f.name() << " " << f.info().encoders[static_cast<std::size_t>(encoder)]);
      const ErrorBound& bound = f.info().errors[static_cast<std::size_t>(encoder)];
      double near = 0;
      // Sizes at which scales are ordinary, subnormal or zero as halves, and as large as they may be: the values above
      // are up to 8 times their size.
      for (const double size : {1.0, 3.7e3, 1e-3, 1e-5, 1e-7, 1e-20, 1e-41, bound.largest / 100}) {
        if (size * 100 > bound.largest * 1.001) continue;
        for (unsigned seed = 0; seed < 12; ++seed) {
          INFO("size " << size << " seed " << seed);
          const double ratio = worst_ratio(f, values(2, size, seed), encoder);
          CHECK(ratio <= 1);
          near = std::max(near, ratio);
        }
      }
      // A bound far above every error says nothing. f32 has none.
      CHECK((f.name() == "f32" || near > 0.3));
    }
  }
}

TEST_CASE("the largest magnitude that formats state is encoded, within the bound", "[formats]") {
  for (const Format f : Format::all())
    for (int encoder = 0; encoder < static_cast<int>(f.info().encoders.size()); ++encoder) {
      INFO(f.name() << " " << f.info().encoders[static_cast<std::size_t>(encoder)]);
      const auto most = static_cast<float>(f.info().errors[static_cast<std::size_t>(encoder)].largest);
      auto x = values(1, 1.0, 3);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] *= most / 16.0f;
      x[7] = most, x[700] = -most;
      CHECK(worst_ratio(f, x, encoder) <= 1);
    }
}

TEST_CASE("what formats make of a NaN and of an infinity is what they say", "[formats]") {
  for (const Format f : Format::all())
    for (int encoder = 0; encoder < static_cast<int>(f.info().encoders.size()); ++encoder) {
      INFO(f.name() << " " << f.info().encoders[static_cast<std::size_t>(encoder)]);
      const auto clean = values(1, 1.0, 0);
      const auto with = [&](float special) {
        auto x = clean;
        x[40] = special;
        return round_trip(f, x, kCols, encoder, f.info().global_for ? f.info().global_for(largest(clean)) : 1.0f);
      };
      const auto nan = with(kNan);
      CHECK(std::isnan(nan[40]) == f.info().keeps_nan);
      for (std::size_t i = 0; i < nan.size(); ++i)
        if (i != 40) CHECK(std::isfinite(nan[i]));
      const std::size_t columns = f.info().error_columns ? static_cast<std::size_t>(f.info().error_columns) : kCols;
      for (const float infinity : {kInf, -kInf}) {
        const auto y = with(infinity);
        switch (f.info().infinity) {
          case Infinity::stays: CHECK(y[40] == infinity); break;
          case Infinity::saturates:
            CHECK(std::isfinite(y[40]));
            CHECK(std::signbit(y[40]) == std::signbit(infinity));
            CHECK(std::fabs(y[40]) >= largest(y));
            break;
          case Infinity::spreads:
            for (std::size_t i = 40 / columns * columns; i < 40 / columns * columns + columns; ++i)
              CHECK(!std::isfinite(y[i]));
            break;
        }
      }
    }
}
