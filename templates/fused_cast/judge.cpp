// SPDX-License-Identifier: Apache-2.0
// The exact values in double precision, by nothing that kernels share, and whether results are within the bound.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "templates/describe.h"
#include "templates/fused_cast/fused_cast.h"

namespace tilewright::fused_cast {
namespace {

constexpr double kRounding = 0x1p-24;  // of single precision, relative
constexpr double kFewRoundings = 0x1p-20;  // of a few operations; an activation's, relative to what it is given
constexpr double kSteepest = 1.2;  // slope of an activation
constexpr double kLargestFloat = std::numeric_limits<float>::max();

std::vector<float> decoded(Format f, Operand from, std::int64_t rows, std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  f.info().decode(from, rows, cols, values.data());
  return values;
}

double activated(Activation act, double v) {
  switch (act) {
    case Activation::none: return v;
    case Activation::relu: return v > 0 || std::isnan(v) ? v : 0;
    case Activation::gelu: return 0.5 * v * std::erfc(-v / std::numbers::sqrt2);
    case Activation::gelu_tanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
    case Activation::silu: return v / (1 + std::exp(-v));
  }
  return v;
}

// One row: from h before the norm, exact but for `error` of each element, to what is encoded.
void finish_row(const FusedCast& c, const std::vector<float>& weight, double* h, double* error) {
  double inverse_rms = 1, relative = 0;
  if (c.norm == Norm::rms) {
    double sum = 0;
    for (std::int64_t i = 0; i < c.cols; ++i) sum += h[i] * h[i];
    // A row has a warp at least, so as many additions follow each other; those of other lanes and warps are few.
    // Squares of h are off by twice its own error, and the root halves all of that.
    relative = (static_cast<double>(c.cols) / 64 + 48) * kRounding;
    inverse_rms = sum > kLargestFloat ? 0 : 1 / std::sqrt(sum / static_cast<double>(c.cols) + static_cast<float>(c.eps));
  }
  for (std::int64_t i = 0; i < c.cols; ++i) {
    if (c.norm == Norm::rms) {
      const double factor = inverse_rms * (weight.empty() ? 1.0 : static_cast<double>(weight[static_cast<std::size_t>(i)]));
      h[i] *= factor;
      error[i] = error[i] * std::fabs(factor) + std::fabs(h[i]) * relative;
    }
    if (c.gate != Gate::none || c.act == Activation::none) continue;
    error[i] = kSteepest * error[i] + kFewRoundings * std::fabs(h[i]);
    h[i] = activated(c.act, h[i]);
  }
}

struct Extremes {
  double low = 0, high = 0;
  double amax() const { return std::max(-low, high); }
};
// Of the values that a correct kernel may encode.
Extremes extremes(const Exact& e, std::int64_t first, std::int64_t count) {
  Extremes found;
  for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(first + count); ++i) {
    found.high = std::max(found.high, e.values[i] + e.bounds[i]);
    found.low = std::min(found.low, e.values[i] - e.bounds[i]);
  }
  return found;
}

}  // namespace

Exact exact(const FusedCast& c, const HostArgs& args) {
  const bool gated = c.gate != Gate::none, added = c.residual != Residual::none;
  const std::vector<float> x = decoded(c.x, args.x, args.rows, c.cols * (gated ? 2 : 1));
  const std::vector<float> bias = c.bias ? decoded(*c.bias, args.bias, 1, c.cols) : std::vector<float>();
  const std::vector<float> weight = c.weight ? decoded(*c.weight, args.weight, 1, c.cols) : std::vector<float>();
  std::vector<float> residual = added ? decoded(c.x, args.residual, args.rows, c.cols) : std::vector<float>();
  Exact e;
  if (added) {
    // In single precision and then x's format, which rounds a sum of two of its numbers as if it were rounded once.
    for (std::size_t i = 0; i < residual.size(); ++i) {
      const float h = bias.empty() ? x[i] : x[i] + bias[i % static_cast<std::size_t>(c.cols)];
      residual[i] = h + residual[i];
    }
    e.residual.resize(static_cast<std::size_t>(c.x.stream_bytes(0, args.rows, c.cols)));
    c.x.info().encode(residual.data(), args.rows, c.cols, {e.residual.data(), nullptr, nullptr}, 0);
    c.x.info().decode({e.residual.data(), nullptr, nullptr}, args.rows, c.cols, residual.data());
  }
  e.values.resize(static_cast<std::size_t>(args.rows * c.cols));
  e.bounds.resize(e.values.size());
  parallel(static_cast<std::size_t>(args.rows), [&](std::size_t row) {
    const std::size_t cols = static_cast<std::size_t>(c.cols), first = row * cols;
    for (std::size_t i = 0; i < cols; ++i) {
      double &h = e.values[first + i], &error = e.bounds[first + i];
      if (gated) {
        const double gate = x[2 * first + i], up = x[2 * first + cols + i];
        h = activated(c.act, gate) * up;
        error = kFewRoundings * std::fabs(up) * (std::fabs(gate) + std::fabs(activated(c.act, gate)));
      } else if (added) {
        h = residual[first + i];
      } else {
        h = bias.empty() ? x[first + i] : static_cast<double>(x[first + i]) + bias[i];
        error = bias.empty() ? 0 : std::fabs(h) * kRounding;
      }
    }
    finish_row(c, weight, &e.values[first], &e.bounds[first]);
    for (std::size_t i = 0; i < cols; ++i) e.bounds[first + i] += std::numeric_limits<float>::min();
  });
  return e;
}

HostCheck judge(const FusedCast& c, const HostArgs& args) {
  HostCheck check;
  check.checked = check.outputs = args.rows * c.cols;
  check.of_bound = 0;
  if (args.rows == 0) return check;
  const Exact e = exact(c, args);
  if (!e.residual.empty()) {
    const std::vector<float> is = decoded(c.x, args.residual_out, args.rows, c.cols),
                             expected = decoded(c.x, {e.residual.data(), nullptr, nullptr}, args.rows, c.cols);
    for (std::size_t i = 0; i < is.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(is[i]) == std::bit_cast<std::uint32_t>(expected[i])) continue;
      if (std::isnan(is[i]) && std::isnan(expected[i])) continue;  // which NaN does not matter
      const auto at = static_cast<std::int64_t>(i);
      check.of_bound = std::numeric_limits<double>::infinity();
      check.wrong = fmt::format("residual_out[{},{}] = {}, expected {}", at / c.cols, at % c.cols, is[i], expected[i]);
      return check;
    }
  }

  // What the host's encoder makes of the exact values, and of values moved from zero, and to it, by the bound: y may hold
  // each of them, also where nothing is said about a format's error (infinities, numbers beyond its largest).
  const FormatInfo& y = c.y.info();
  const auto stored = [&](double direction) {
    std::vector<float> values(e.values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(e.values[i] + direction * std::copysign(e.bounds[i], e.values[i]));
    HostStreams streams(c.y, args.rows, c.cols);
    if (args.y.global) *streams.operand.global = *args.y.global;
    y.encode(values.data(), args.rows, c.cols, streams.operand, c.encoder);
    y.decode(streams.operand, args.rows, c.cols, values.data());
    return values;
  };
  const std::vector<float> likely[] = {stored(0), stored(1), stored(-1)};
  const std::vector<float> got = decoded(c.y, args.y, args.rows, c.cols);

  const ErrorBound& format = y.errors[static_cast<std::size_t>(c.encoder)];
  // The largest magnitude of a tensor that has y's scale.
  const double tensor = args.y.global ? static_cast<double>(*args.y.global) / y.global_for(1.0f) : 0;
  const std::int64_t group = y.error_columns ? y.error_columns : c.cols;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const Extremes whole = extremes(e, row * c.cols, c.cols);
    for (std::int64_t at = 0; at < c.cols; at += group) {
      const std::int64_t count = std::min(group, c.cols - at);
      const Extremes own = extremes(e, row * c.cols + at, count);
      const double amax = args.y.global && !y.error_columns ? tensor : own.amax();
      for (std::int64_t i = at; i < at + count; ++i) {
        const auto k = static_cast<std::size_t>(row * c.cols + i);
        const double v = e.values[k], most = std::fabs(v) + e.bounds[k], error = std::fabs(got[k] - v);
        const double bound =
            e.bounds[k] + format.at(most, amax, own.high - own.low, args.y.global ? tensor : whole.amax());
        const bool within = own.amax() <= format.largest && (!args.y.global || most <= tensor) && error <= bound;
        const bool same = std::any_of(std::begin(likely), std::end(likely), [&](const std::vector<float>& other) {
          return got[k] == other[k] || (std::isnan(got[k]) && std::isnan(other[k]));
        });
        if (!within && !same) {
          check.of_bound = std::numeric_limits<double>::infinity();
          if (check.wrong.empty())
            check.wrong = fmt::format("y[{},{}] = {}, expected {} +- {:.2g}", row, i, got[k], v, bound);
        } else if (!std::isfinite(got[k])) {
          ++check.infinite;
        } else {
          check.largest_error = std::max(check.largest_error, error);
          if (within && bound > 0) check.of_bound = std::max(*check.of_bound, error / bound);
        }
      }
    }
  }
  return check;
}

}  // namespace tilewright::fused_cast
