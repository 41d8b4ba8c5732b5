// SPDX-License-Identifier: Apache-2.0
// The methods, each from one channel's Observation to a range. Sources of the formulas are in docs/use/calibration.md.
#include <fmt/format.h>
#include <tilewright/error.h>

#include <iterator>
#include <limits>

#include "quantize/calibration/observation.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using namespace quantize;

constexpr std::string_view kMethods[] = {"min-max", "moving-average", "percentile", "entropy", "mse"};

using Counts = std::vector<std::uint64_t>;

// Magnitudes of both signs, up to the last bin in use.
Counts magnitudes(const Observation& o) {
  Counts counts(std::max(o.negative.size(), o.positive.size()));
  for (const Counts* side : {&o.negative, &o.positive})
    for (std::size_t i = 0; i < side->size(); ++i) counts[i] += (*side)[i];
  while (!counts.empty() && counts.back() == 0) counts.pop_back();
  return counts;
}

double upper_end(const Observation& o, std::size_t bins, double most) {
  return std::min(static_cast<double>(bins) * width(o), most);
}

std::uint64_t rank(double share, std::uint64_t count) {  // of what has the share, in percent, at or below it
  const double rank = std::ceil(share * static_cast<double>(count) / 100);
  return rank >= static_cast<double>(count) ? count : std::max<std::uint64_t>(static_cast<std::uint64_t>(rank), 1);
}

// The upper end of the bin with the value of this rank, counted from the least one.
double quantile(const Observation& o, const Counts& negative, const Counts& positive, double most, std::uint64_t rank) {
  if (rank == o.count) return most;
  std::uint64_t below = 0;
  for (std::size_t i = negative.size(); i-- > 0;)
    if ((below += negative[i]) >= rank) return std::min(-static_cast<double>(i) * width(o) + 0.0, most);
  for (std::size_t i = 0; i < positive.size(); ++i)
    if ((below += positive[i]) >= rank) return upper_end(o, i + 1, most);
  return most;
}

ClipRange percentile_range(const Observation& o, const Calibration& how) {
  if (how.symmetry == Symmetry::symmetric) {
    const double t = quantile(o, {}, magnitudes(o), amax(o), rank(how.percentile, o.count));
    return {-t, t};
  }
  const std::uint64_t at = rank((100 + how.percentile) / 2, o.count);
  return {0.0 - quantile(o, o.positive, o.negative, -o.min, at), quantile(o, o.negative, o.positive, o.max, at)};
}

double x_log_x(std::uint64_t x) { return x ? static_cast<double>(x) * std::log(static_cast<double>(x)) : 0; }

// The reference distribution P is the first i bins, with what is clipped added to the last of them. Q is the first i
// bins without that, summed in `levels` equal parts, each sum spread evenly over the bins of its part that are not
// empty. With c and z the sum and the number of such bins of a part, n all values and k those of the first i bins,
//   KL(P || Q) = sum over bins (P / n) log((P / n) / (c / z / k))
// which prefix sums give in time proportional to the number of levels. It is infinite if values were clipped and the
// last bin is empty.
double entropy_clip(const Observation& o, int levels) {
  const Counts h = magnitudes(o);
  const double most = amax(o);
  if (most == 0) return 0;
  Counts sums(h.size() + 1), filled(h.size() + 1);
  std::vector<double> logs(h.size() + 1);
  for (std::size_t i = 0; i < h.size(); ++i) {
    sums[i + 1] = sums[i] + h[i];
    filled[i + 1] = filled[i] + (h[i] != 0);
    logs[i + 1] = logs[i] + x_log_x(h[i]);
  }
  const auto parts = static_cast<std::size_t>(levels);
  const auto n = static_cast<double>(o.count);
  // Prefix sums round, so differences below this are none.
  constexpr double kSlack = 1e-12;
  double least = std::numeric_limits<double>::infinity();
  std::size_t best = h.size();
  for (std::size_t i = h.size(); i >= parts; --i) {
    const std::uint64_t kept = sums[i], clipped = o.count - kept;
    if (clipped && h[i - 1] == 0) continue;
    double cross = 0;
    for (std::size_t part = 0, begin = 0; part < parts; ++part) {
      const std::size_t end = ((part + 1) * i + parts - 1) / parts;
      const std::uint64_t c = sums[end] - sums[begin], z = filled[end] - filled[begin];
      const std::uint64_t p = c + (part + 1 == parts ? clipped : 0);
      if (p) cross += static_cast<double>(p) * std::log(static_cast<double>(c) / static_cast<double>(z));
      begin = end;
    }
    const double self = logs[i - 1] + x_log_x(h[i - 1] + clipped);
    const double divergence = (self - cross) / n + std::log(static_cast<double>(kept) / n);
    if (divergence < least - kSlack) least = divergence, best = i;
  }
  return upper_end(o, best, most);
}

struct Bin {
  double middle, count;
};

// Errors of one choice of levels, ascending, for bins that descend. Gives up at `enough`.
double squared_error(const std::vector<Bin>& bins, const std::vector<double>& levels, double enough) {
  double sum = 0;
  std::size_t level = levels.size() - 1;
  for (const Bin& b : bins) {
    while (level > 0 && 2 * b.middle < levels[level] + levels[level - 1]) --level;
    const double error = b.middle - levels[level];
    sum += b.count * error * error;
    if (sum >= enough) break;
  }
  return sum;
}

void add_bins(std::vector<Bin>& bins, const Counts& counts, std::size_t i, double signed_width) {
  if (counts[i]) bins.push_back({(static_cast<double>(i) + 0.5) * signed_width, static_cast<double>(counts[i])});
}

double mse_clip(const Observation& o, const CalibrationTarget& target) {
  const Counts h = magnitudes(o);
  const double most = amax(o);
  std::vector<Bin> bins;
  for (std::size_t i = h.size(); i-- > 0;) add_bins(bins, h, i, width(o));
  const std::vector<double> codes = target.magnitudes();
  std::vector<double> levels(codes.size());
  double least = std::numeric_limits<double>::infinity(), best = most;
  for (std::size_t i = h.size(); i > 0; --i) {
    const double t = upper_end(o, i, most);
    const double scale = scale_for({-t, t}, target, Symmetry::symmetric).scale;
    for (std::size_t k = 0; k < codes.size(); ++k) levels[k] = codes[k] * scale;
    const double error = squared_error(bins, levels, least);
    if (error < least) least = error, best = t;
  }
  return best;
}

// Each end in turn, until neither of them improves the sum. It gets less each time, so this ends; kRounds is for ends
// that improve by next to nothing.
ClipRange mse_range(const Observation& o, const CalibrationTarget& target) {
  std::vector<Bin> bins;
  for (std::size_t i = o.positive.size(); i-- > 0;) add_bins(bins, o.positive, i, width(o));
  for (std::size_t i = 0; i < o.negative.size(); ++i) add_bins(bins, o.negative, i, -width(o));
  std::vector<double> levels(static_cast<std::size_t>(target.most() - target.least() + 1));
  ClipRange range{std::min(o.min, 0.0), std::max(o.max, 0.0)};
  double least = std::numeric_limits<double>::infinity();
  const auto attempt = [&](const ClipRange& r) {
    const ScaleAndZero s = scale_for(r, target, Symmetry::asymmetric);
    for (std::size_t k = 0; k < levels.size(); ++k)
      levels[k] = (target.least() + static_cast<int>(k) - s.zero_point) * static_cast<double>(s.scale);
    const double error = squared_error(bins, levels, least);
    if (error >= least) return false;
    least = error;
    range = r;
    return true;
  };
  const auto bins_of = [&](double end) { return static_cast<std::size_t>(std::ceil(end / width(o))); };
  const std::size_t above = bins_of(range.max), below = bins_of(-range.min);
  attempt(range);
  constexpr int kRounds = 16;
  bool better = true;
  for (int round = 0; better && round < kRounds; ++round) {
    better = false;
    for (std::size_t i = above; i-- > 0;) better |= attempt({range.min, static_cast<double>(i) * width(o)});
    for (std::size_t i = below; i-- > 0;) better |= attempt({0.0 - static_cast<double>(i) * width(o), range.max});
  }
  return {std::clamp(range.min, o.min, o.max), std::clamp(range.max, o.min, o.max)};
}

ClipRange range_of(const Observation& o, const Calibration& how, double momentum) {
  const bool symmetric = how.symmetry == Symmetry::symmetric;
  const auto clipped = [&](double t) {
    return symmetric ? ClipRange{0.0 - t, t} : ClipRange{std::max(o.min, -t), std::min(o.max, t)};
  };
  switch (how.method) {
    case CalibrationMethod::min_max: return symmetric ? clipped(amax(o)) : ClipRange{o.min, o.max};
    case CalibrationMethod::moving_average: {
      const double rest = at_momentum(momentum, o.batches);
      const double min = std::clamp(o.average[0] + rest * o.first[0], o.min, o.max);
      const double max = std::clamp(o.average[1] + rest * o.first[1], o.min, o.max);
      return symmetric ? clipped(std::max(std::fabs(min), std::fabs(max))) : ClipRange{min, max};
    }
    case CalibrationMethod::percentile: return percentile_range(o, how);
    case CalibrationMethod::entropy: return clipped(entropy_clip(o, 1 << (how.target.bits() - 1)));
    case CalibrationMethod::mse: return symmetric ? clipped(mse_clip(o, how.target)) : mse_range(o, how.target);
  }
  return {};
}

void need_symmetric(const CalibrationTarget& target, Symmetry symmetry) {
  if (target.is_float() && symmetry == Symmetry::asymmetric)
    throw Error(ErrorCode::unsupported, "symmetry", "asymmetric",
                fmt::format("is not supported: {} has no zero point, so its scale is symmetric", target.name()));
}

}  // namespace

std::string_view name_of(CalibrationMethod method) { return kMethods[static_cast<std::size_t>(method)]; }

CalibrationMethod parse_calibration_method(std::string_view name) {
  const auto found = std::find(std::begin(kMethods), std::end(kMethods), name);
  if (found == std::end(kMethods)) throw must_be("method", name, fmt::format("one of {}", fmt::join(kMethods, ", ")));
  return static_cast<CalibrationMethod>(found - std::begin(kMethods));
}

CalibrationTarget CalibrationTarget::parse(std::string_view name) {
  if (name == "e4m3") return {Kind::e4m3, true, 8};
  if (name == "e5m2") return {Kind::e5m2, true, 8};
  if (name == "e2m1") return {Kind::e2m1, true, 4};
  for (int bits = 2; bits <= 8; ++bits)
    for (const bool is_signed : {true, false}) {
      const CalibrationTarget target(Kind::integer, is_signed, bits);
      if (name == target.name()) return target;
    }
  throw must_be("target", name, "int2 to int8, uint2 to uint8, e4m3, e5m2 or e2m1");
}

std::string CalibrationTarget::name() const {
  switch (kind_) {
    case Kind::e4m3: return "e4m3";
    case Kind::e5m2: return "e5m2";
    case Kind::e2m1: return "e2m1";
    case Kind::integer: break;
  }
  return fmt::format("{}int{}", signed_ ? "" : "u", bits_);
}

double CalibrationTarget::largest() const {
  switch (kind_) {
    case Kind::e4m3: return 448;
    case Kind::e5m2: return 57344;
    case Kind::e2m1: return 6;
    case Kind::integer: break;
  }
  return (1 << (bits_ - 1)) - 1;
}

std::vector<double> CalibrationTarget::magnitudes() const {
  // Floats: codes in ascending order are an exponent above a mantissa, subnormal where the exponent is 0.
  const int mantissa = kind_ == Kind::e4m3 ? 3 : kind_ == Kind::e5m2 ? 2 : kind_ == Kind::e2m1 ? 1 : 0;
  const int bias = kind_ == Kind::e4m3 ? 7 : kind_ == Kind::e5m2 ? 15 : 1;
  std::vector<double> all;
  for (int code = 0;; ++code) {
    const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    const double value = kind_ == Kind::integer ? code
                         : exponent == 0        ? std::ldexp(fraction, 1 - bias - mantissa)
                                                : std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
    if (value > largest()) return all;
    all.push_back(value);
  }
}

std::vector<ClipRange> clip_ranges(const Observer& observer, const Calibration& how) {
  need_symmetric(how.target, how.symmetry);
  if (!(how.percentile > 0 && how.percentile <= 100))
    throw must_be("percentile", fmt::format("{}", how.percentile), "greater than 0 and at most 100");
  const bool average = how.method == CalibrationMethod::moving_average;
  if (!average && how.method != CalibrationMethod::min_max && observer.options().bins == 0)
    throw Error(ErrorCode::invalid_argument, "bins", "0",
                fmt::format("must not be 0: the method {} needs a histogram", name_of(how.method)));
  std::vector<ClipRange> ranges;
  for (std::size_t i = 0; i < observer.channels().size(); ++i) {
    const Observation& o = observer.channels()[i];
    const std::string what = observer.channels().size() == 1 ? "data" : fmt::format("data of channel {}", i);
    if (o.count == 0)
      throw Error(ErrorCode::invalid_argument, what, o.nans ? fmt::format("{} NaNs", o.nans) : "none",
                  "must have a number: nothing can be calibrated without");
    if (average && o.batches == 0)
      throw Error(ErrorCode::invalid_argument, what, "no batch that has ended",
                  "must have a batch that has ended: call end_batch()");
    ranges.push_back(range_of(o, how, observer.options().momentum));
  }
  return ranges;
}

ScaleAndZero scale_for(const ClipRange& range, const CalibrationTarget& target, Symmetry symmetry) {
  need_symmetric(target, symmetry);
  constexpr double kLargest = std::numeric_limits<float>::max();
  const bool finite = std::fabs(range.min) <= kLargest && std::fabs(range.max) <= kLargest;
  if (!finite || range.min > range.max)
    throw must_be("range", fmt::format("[{}, {}]", range.min, range.max),
                  "from a least to a largest number, both finite as floats");
  const auto scale = [](double extent, double steps) {
    if (extent == 0) return 1.0f;
    return std::max(static_cast<float>(extent / steps), std::numeric_limits<float>::min());
  };
  if (symmetry == Symmetry::symmetric)
    return {scale(std::max(std::fabs(range.min), std::fabs(range.max)), target.largest()),
            target.is_signed() ? 0 : 1 << (target.bits() - 1)};
  const double min = std::min(range.min, 0.0), max = std::max(range.max, 0.0);
  const float s = scale(max - min, target.most() - target.least());
  const double zero = std::nearbyint(target.least() - min / s);
  return {s, static_cast<int>(std::clamp<double>(zero, target.least(), target.most()))};
}

}  // namespace tilewright
