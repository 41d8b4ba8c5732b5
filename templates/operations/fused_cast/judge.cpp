// SPDX-License-Identifier: Apache-2.0
// The exact values in double precision, by nothing that kernels share, and whether results are within the bound.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "support/threads.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/fused_cast/fused_cast.h"

namespace tilewright::fused_cast {
namespace {

constexpr double kRounding = 0x1p-24;      // of single precision, relative
constexpr double kFewRoundings = 0x1p-20;  // of a few operations; an activation's, relative to what it is given
constexpr double kSteepest = 1.2;          // slope of an activation
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
    inverse_rms =
        sum > kLargestFloat ? 0 : 1 / std::sqrt(sum / static_cast<double>(c.cols) + static_cast<float>(c.eps));
  }
  for (std::int64_t i = 0; i < c.cols; ++i) {
    if (c.norm == Norm::rms) {
      const double factor =
          inverse_rms * (weight.empty() ? 1.0 : static_cast<double>(weight[static_cast<std::size_t>(i)]));
      h[i] *= factor;
      error[i] = error[i] * std::fabs(factor) + std::fabs(h[i]) * relative;
    }
    if (c.gate != Gate::none || c.act == Activation::none) continue;
    error[i] = kSteepest * error[i] + kFewRoundings * std::fabs(h[i]);
    h[i] = activated(c.act, h[i]);
  }
}

struct Extremes {
  double low = 0, high = 0;  // of the values that a correct kernel may encode
  double sure = 0;           // the largest magnitude is this at least
  double amax() const { return std::max(-low, high); }
};
Extremes extremes(const Exact& e, std::int64_t first, std::int64_t count) {
  Extremes found;
  for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(first + count); ++i) {
    found.high = std::max(found.high, e.values[i] + e.bounds[i]);
    found.low = std::min(found.low, e.values[i] - e.bounds[i]);
    found.sure = std::max(found.sure, std::fabs(e.values[i]) - e.bounds[i]);
  }
  return found;
}

// What y may hold of values within their bounds. (docs/reference/numerics.md, "Fused casts".)
class Permitted {
 public:
  Permitted(const FusedCast& c, const HostArgs& args, const Exact& e)
      : c_(c), e_(e), y_(c.y.info()), error_(y_.errors[static_cast<std::size_t>(c.encoder)]) {
    global_ = args.y.global;
    // Elements that share a scale which is made of them.
    group_ = y_.error_columns ? y_.error_columns : global_ ? 1 : c.cols;
    scaled_ = !is_plain(c.y);
    follows_largest_ = error_.range == 0 && (error_.outer == 0 || global_) && !fast_path(c.y).row_mean;
    for (const double largest : {1.0, -1.0})
      for (const double others : {1.0, -1.0})
        if (group_ > 1 || largest == others) moved_.push_back(stored(args.rows, largest, others));
    tensor_ = global_ ? static_cast<double>(*global_) / y_.global_for(1.0f) : 0;
  }
  std::int64_t group() const { return group_; }
  // Of the group of elements first to first + count, in a row whose extremes are `whole`.
  void look_at(std::int64_t first, std::int64_t count, const Extremes& whole) {
    own_ = extremes(e_, first, count), whole_ = whole.amax();
    bool above = false, below = false;
    for (std::int64_t i = first; i < first + count; ++i)
      if (largest(i)) (e_.values[static_cast<std::size_t>(i)] < 0 ? below : above) = true;
    spread_ = group_ > 1 ? own_.amax() / own_.sure - 1 : 0;
    between_ = follows_largest_ && (group_ == 1 || (own_.sure > 0 && spread_ <= kMostSpread && !(above && below)));
  }
  bool right(std::int64_t i, float got) const {
    const auto k = static_cast<std::size_t>(i);
    if (!between_ && std::fabs(got - e_.values[k]) <= bound(i) && own_.amax() <= error_.largest) return true;
    double low = kInfinite, high = -kInfinite;
    for (const std::vector<float>& values : moved_) {
      if (std::isnan(values[k]) && std::isnan(got)) return true;
      if (between_ ? std::isnan(values[k]) : got != values[k]) continue;
      low = std::min<double>(low, values[k]), high = std::max<double>(high, values[k]);
    }
    const double slack = scaled_ ? std::max(kScaleSlack, 2 * spread_) * std::max(std::fabs(low), std::fabs(high)) : 0;
    return low <= high && (got >= low - slack || got == low) && (got <= high + slack || got == high);
  }
  double bound(std::int64_t i) const {
    const auto k = static_cast<std::size_t>(i);
    const double amax = global_ && group_ == 1 && scaled_ ? tensor_ : own_.amax();
    return e_.bounds[k] +
           error_.at(std::fabs(e_.values[k]) + e_.bounds[k], amax, own_.high - own_.low, global_ ? tensor_ : whole_);
  }

 private:
  static constexpr double kInfinite = std::numeric_limits<double>::infinity();
  // A stored scale may be the neighbour of another one; half precision's are 2^-10 apart, and codes of eight bits 2^-7.
  static constexpr double kScaleSlack = 0x1p-9;
  // Of a group's largest magnitude, relative: up to here two neighbouring scales at most are possible.
  static constexpr double kMostSpread = 0x1p-5;

  // Whether it may be the one of largest magnitude.
  bool largest(std::int64_t i) const {
    const auto k = static_cast<std::size_t>(i);
    return std::fabs(e_.values[k]) + e_.bounds[k] >= own_.sure;
  }
  // What the host's encoder makes of a matrix whose largest elements are moved from zero (1) or to it (-1) by their
  // bounds, and the others likewise.
  std::vector<float> stored(std::int64_t rows, double of_largest, double of_others) {
    std::vector<float> values(e_.values.size());
    for (std::int64_t first = 0; first < rows * c_.cols; first += group_) {
      const std::int64_t count = std::min(group_, c_.cols - first % c_.cols);
      own_ = extremes(e_, first, count);
      for (std::int64_t i = first; i < first + count; ++i) {
        const auto k = static_cast<std::size_t>(i);
        values[k] = static_cast<float>(e_.values[k] + std::copysign(e_.bounds[k], e_.values[k]) *
                                                          (largest(i) ? of_largest : of_others));
      }
    }
    HostStreams streams(c_.y, rows, c_.cols);
    if (global_) *streams.operand.global = *global_;
    y_.encode(values.data(), rows, c_.cols, streams.operand, c_.encoder);
    y_.decode(streams.operand, rows, c_.cols, values.data());
    return values;
  }

  const FusedCast& c_;
  const Exact& e_;
  const FormatInfo& y_;
  const ErrorBound& error_;
  const float* global_;
  std::int64_t group_;
  bool scaled_, follows_largest_, between_ = false;
  double tensor_ = 0;  // the largest magnitude of a tensor that has y's global scale
  double whole_ = 0, spread_ = 0;
  Extremes own_;
  std::vector<std::vector<float>> moved_;
};

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
  parallel(0, static_cast<std::size_t>(args.rows), [&](std::size_t row) {
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
    for (std::size_t i = 0; i < cols; ++i) {
      double& bound = e.bounds[first + i];
      bound = std::isfinite(e.values[first + i]) ? bound + (bound > 0 ? std::numeric_limits<float>::min() : 0) : 0;
    }
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

  Permitted permitted(c, args, e);
  const std::vector<float> got = decoded(c.y, args.y, args.rows, c.cols);
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const Extremes whole = extremes(e, row * c.cols, c.cols);
    for (std::int64_t at = 0; at < c.cols; at += permitted.group()) {
      const std::int64_t first = row * c.cols + at, end = first + std::min(permitted.group(), c.cols - at);
      permitted.look_at(first, end - first, whole);
      for (std::int64_t i = first; i < end; ++i) {
        const float y = got[static_cast<std::size_t>(i)];
        const double v = e.values[static_cast<std::size_t>(i)], error = std::fabs(y - v), bound = permitted.bound(i);
        if (!permitted.right(i, y)) {
          check.of_bound = std::numeric_limits<double>::infinity();
          if (check.wrong.empty())
            check.wrong = fmt::format("y[{},{}] = {}, expected {} +- {:.2g}", row, i - row * c.cols, y, v, bound);
        } else if (!std::isfinite(y)) {
          ++check.infinite;
        } else {
          check.largest_error = std::max(check.largest_error, error);
          if (bound > 0 && error <= bound) check.of_bound = std::max(*check.of_bound, error / bound);
        }
      }
    }
  }
  return check;
}

}  // namespace tilewright::fused_cast
