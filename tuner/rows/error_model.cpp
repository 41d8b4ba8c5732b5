// SPDX-License-Identifier: Apache-2.0
#include "tuner/rows/error_model.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <numbers>
#include <string>

namespace tilewright::tuner {
namespace {

// Deviations of log(measured / predicted), by playing searches back over complete measurements of three layers
// (bench/LOG.md).
constexpr double kCommon = 0.1;       // of the error that all candidates share
constexpr double kOfKind = 0.12;      // of that which candidates of one kind share
constexpr double kOwn = 0.1;          // of a candidate's own
constexpr double kNoise = 0.015;      // of a measurement
constexpr double kKnobOctaves = 0.6;  // a distance of knobs at which errors are alike by 1 / e
constexpr double kRowOctaves = 3;     // and of numbers of rows

// Euclidean, over octaves of the knobs' values; a knob that one does not name is 0.
double distance(const Candidate& a, const Candidate& b) {
  const auto octave = [](const Candidate& c, const std::string& knob) {
    for (const auto& [name, value] : c.knobs)
      if (name == knob) return std::log2(1.0 + static_cast<double>(value));
    return 0.0;
  };
  double sum = 0;
  for (const auto& [knob, value] : a.knobs) {
    const double d = std::log2(1.0 + static_cast<double>(value)) - octave(b, knob);
    sum += d * d;
  }
  for (const auto& [knob, value] : b.knobs) {
    bool both = false;
    for (const auto& [name, other] : a.knobs) both = both || name == knob;
    const double d = std::log2(1.0 + static_cast<double>(value));
    if (!both) sum += d * d;
  }
  return std::sqrt(sum);
}

// Candidates of one family that have the same options, knobs that others do not name, such as a schedule: how these are
// mispredicted is learned at once, whatever the tile.
std::vector<std::string> kinds_of(std::span<const Candidate> candidates) {
  std::map<std::string, int> named, of_family;  // candidates
  for (const Candidate& c : candidates) {
    ++of_family[c.family];
    for (const auto& [knob, value] : c.knobs) ++named[c.family + ' ' + knob];
  }
  std::vector<std::string> kinds;
  for (const Candidate& c : candidates) {
    std::string kind = c.family;
    for (const auto& [knob, value] : c.knobs)
      if (named[c.family + ' ' + knob] < of_family[c.family]) kind += fmt::format(" {}={}", knob, value);
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

}  // namespace

ErrorModel::ErrorModel(std::span<const Candidate> candidates, std::span<const std::int64_t> rows) : rows_(rows.size()) {
  const std::vector<std::string> kinds = kinds_of(candidates);
  for (std::size_t i = 0; i < candidates.size(); ++i)
    for (std::size_t j = 0; j < candidates.size(); ++j) {
      const Candidate &a = candidates[i], &b = candidates[j];
      alike_.push_back((a.family == b.family ? kOwn * kOwn * std::exp(-distance(a, b) / kKnobOctaves) : 0) +
                       (kinds[i] == kinds[j] ? kOfKind * kOfKind : 0));
    }
  for (const std::int64_t a : rows)
    for (const std::int64_t b : rows)
      near_.push_back(std::exp(-std::fabs(std::log2(static_cast<double>(a) / static_cast<double>(b))) / kRowOctaves));
  mean_.assign(candidates.size() * rows_, 0);
  variance_.assign(mean_.size(), kCommon * kCommon + kOfKind * kOfKind + kOwn * kOwn);
}

double ErrorModel::covariance(std::size_t c, std::size_t at, std::size_t other, std::size_t other_at) const {
  const std::size_t candidates = mean_.size() / rows_;
  return kCommon * kCommon + alike_[c * candidates + other] * near_[at * rows_ + other_at];
}

void ErrorModel::observe(std::size_t candidate, std::size_t at, double log_error) {
  const std::size_t here = index(candidate, at);
  std::vector<float> row(mean_.size());
  for (std::size_t c = 0, i = 0; c * rows_ < mean_.size(); ++c)
    for (std::size_t p = 0; p < rows_; ++p, ++i) row[i] = static_cast<float>(covariance(c, p, candidate, at));
  for (const std::vector<float>& before : projected_) {
    const float weight = before[here];
    for (std::size_t i = 0; i < row.size(); ++i) row[i] -= weight * before[i];
  }
  const double pivot = std::sqrt(variance_[here] + kNoise * kNoise);
  const double innovation = (log_error - mean_[here]) / pivot;
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<float>(row[i] / pivot);
    mean_[i] += row[i] * innovation;
    variance_[i] -= static_cast<double>(row[i]) * row[i];
  }
  projected_.push_back(std::move(row));
}

double ErrorModel::deviation(std::size_t candidate, std::size_t at) const {
  return std::sqrt(std::max(variance_[index(candidate, at)], kNoise * kNoise));
}

double expected_improvement(double have, double estimate, double deviation) {
  const double d = std::log(have / estimate) / deviation;
  const double below = 0.5 * std::erfc(-d / std::numbers::sqrt2);
  return deviation * (d * below + std::exp(-d * d / 2) / std::sqrt(2 * std::numbers::pi));
}

}  // namespace tilewright::tuner
