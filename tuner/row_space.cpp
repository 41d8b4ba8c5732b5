// SPDX-License-Identifier: Apache-2.0
#include "tuner/row_space.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include <tilewright/family.h>

namespace tilewright::tuner {
namespace {

constexpr double kLeastGain = 0.01;    // of a further binary: logarithms of times, summed over the points by weight
constexpr double kPerOctave = 8;       // weight of an octave of rows
constexpr double kPriorWeight = 0.05;  // of the mean error beside that of contenders like it
constexpr double kNear = 1.10;         // an estimate within this of the least may be the fastest
constexpr double kApart = 1.07;        // least ratio of two points at which one contender is measured
constexpr double kUncertain = 1.5;     // before anything was measured
constexpr double kHope = 0.92;         // of an untried contender's estimate, which is off by more than that

// The logarithm of measured over predicted at each point: interpolated between measured points, beyond them the
// nearest.
std::vector<double> errors_of(const RowContender& c, std::span<const std::int64_t> points) {
  std::vector<double> errors(points.size(), 0);
  const auto error = [&](std::size_t p) { return std::log(c.measured[p] / c.predicted[p]); };
  std::size_t below = points.size();
  for (std::size_t p = 0; p < points.size(); ++p) {
    if (c.measured[p] > 0) {
      errors[p] = error(p);
      below = p;
      continue;
    }
    std::size_t above = p;
    while (above < points.size() && c.measured[above] <= 0) ++above;
    if (below == points.size() && above == points.size()) return errors;
    if (below == points.size()) {
      errors[p] = error(above);
    } else if (above == points.size()) {
      errors[p] = error(below);
    } else {
      const auto octaves = [&](std::size_t a, std::size_t b) {
        return std::log2(static_cast<double>(points[b]) / static_cast<double>(points[a]));
      };
      errors[p] = error(below) + (error(above) - error(below)) * octaves(below, p) / octaves(below, above);
    }
  }
  return errors;
}

bool was_measured(const RowContender& c) {
  return std::any_of(c.measured.begin(), c.measured.end(), [](double us) { return us > 0; });
}

}  // namespace

RowSpace::RowSpace(const Problem& problem, const Arch& arch, const DeviceModel& model,
                   std::span<const std::int64_t> points, int each)
    : points_(points.begin(), points.end()) {
  for (std::size_t p = 0; p < points_.size(); ++p)
    weights_.push_back(kPerOctave *
                       (p ? std::log2(static_cast<double>(points_[p]) / static_cast<double>(points_[p - 1])) : 1));
  const Family* reference = families(problem.op()).back();
  std::map<std::string, bool> known;
  for (const std::int64_t rows : points_) {
    int taken = 0;
    for (Ranked& r : rank(problem.with_rows(rows), arch, model)) {
      if (r.family == reference || taken++ == each) break;
      if (!known.emplace(r.candidate.text(), true).second) continue;
      RowContender c;
      c.ranked = std::move(r), c.listed = rows;
      contenders_.push_back(std::move(c));
    }
  }
  std::vector<Problem> at;
  for (const std::int64_t rows : points_) at.push_back(problem.with_rows(rows));
  for (RowContender& c : contenders_) {
    for (const Problem& p : at)
      c.predicted.push_back(predict(c.ranked.family->traits(p, arch, c.ranked.candidate), model).microseconds);
    c.measured.assign(points_.size(), 0);
    c.estimated = c.predicted;
  }
}

double RowSpace::least(std::size_t point) const {
  double us = std::numeric_limits<double>::infinity();
  for (const RowContender& c : contenders_)
    if (c.tried && !c.failed) us = std::min(us, c.estimated[point]);
  return us;
}

std::vector<int> RowSpace::next(int most) const {
  std::vector<double> have(points_.size());
  for (std::size_t p = 0; p < have.size(); ++p) {
    have[p] = least(p);
    if (have[p] < std::numeric_limits<double>::infinity()) continue;
    for (const RowContender& c : contenders_) have[p] = std::min(have[p], c.estimated[p] * kUncertain);
  }
  std::vector<int> list;
  while (static_cast<int>(list.size()) < most) {
    int best = -1;
    double most_gain = kLeastGain;
    for (std::size_t i = 0; i < contenders_.size(); ++i) {
      const RowContender& c = contenders_[i];
      if (c.tried || std::find(list.begin(), list.end(), static_cast<int>(i)) != list.end()) continue;
      double gain = 0;
      for (std::size_t p = 0; p < have.size(); ++p)
        gain += weights_[p] * std::max(0.0, std::log(have[p] / (kHope * c.estimated[p])));
      if (gain > most_gain) best = static_cast<int>(i), most_gain = gain;
    }
    if (best < 0) break;
    list.push_back(best);
    for (std::size_t p = 0; p < have.size(); ++p)
      have[p] = std::min(have[p], kHope * contenders_[static_cast<std::size_t>(best)].estimated[p]);
  }
  return list;
}

std::vector<int> RowSpace::worth_measuring(int contender, int most) const {
  const RowContender& c = contenders_[static_cast<std::size_t>(contender)];
  std::vector<std::pair<double, int>> open;  // estimate relative to the least of the others
  for (std::size_t p = 0; p < points_.size(); ++p) {
    double others = std::numeric_limits<double>::infinity();
    for (const RowContender& o : contenders_)
      if (&o != &c && o.tried && !o.failed) others = std::min(others, o.estimated[p]);
    // Alone, it is measured where its own list has it.
    const double ratio = others < std::numeric_limits<double>::infinity() ? c.estimated[p] / others
                         : points_[p] == c.listed                         ? 0.0
                                                                          : 1.0;
    if (c.measured[p] <= 0) open.emplace_back(ratio, static_cast<int>(p));
  }
  std::sort(open.begin(), open.end());
  // Apart from each other: between two that are near, the model knows as well.
  const auto near_another = [&](int p, const std::vector<int>& list) {
    const auto near = [&](std::size_t q) {
      const double a = static_cast<double>(points_[static_cast<std::size_t>(p)]), b = static_cast<double>(points_[q]);
      return std::max(a, b) / std::min(a, b) < kApart;
    };
    for (const int q : list)
      if (near(static_cast<std::size_t>(q))) return true;
    for (std::size_t q = 0; q < points_.size(); ++q)
      if (c.measured[q] > 0 && near(q)) return true;
    return false;
  };
  std::vector<int> list;
  for (const auto& [ratio, p] : open)
    if (static_cast<int>(list.size()) < most && (ratio <= kNear || (list.empty() && !was_measured(c))) &&
        !near_another(p, list))
      list.push_back(p);
  return list;
}

void RowSpace::learn() {
  std::vector<const RowContender*> teachers;
  std::vector<std::vector<double>> errors;
  std::vector<double> mean(points_.size(), 0);
  for (const RowContender& c : contenders_)
    if (was_measured(c)) teachers.push_back(&c), errors.push_back(errors_of(c, points_));
  for (const auto& e : errors)
    for (std::size_t p = 0; p < mean.size(); ++p) mean[p] += e[p] / static_cast<double>(errors.size());
  std::size_t own = 0;
  for (RowContender& c : contenders_) {
    if (own < teachers.size() && teachers[own] == &c) {
      for (std::size_t p = 0; p < points_.size(); ++p)
        c.estimated[p] = c.measured[p] > 0 ? c.measured[p] : c.predicted[p] * std::exp(errors[own][p]);
      ++own;
      continue;
    }
    std::vector<double> sum(points_.size());
    double weights = kPriorWeight;
    for (std::size_t p = 0; p < sum.size(); ++p) sum[p] = kPriorWeight * mean[p];
    for (std::size_t t = 0; t < teachers.size(); ++t) {
      const double alike = likeness(c.ranked, teachers[t]->ranked), weight = alike * alike;
      if (weight == 0) continue;
      weights += weight;
      for (std::size_t p = 0; p < sum.size(); ++p) sum[p] += weight * errors[t][p];
    }
    for (std::size_t p = 0; p < sum.size(); ++p) c.estimated[p] = c.predicted[p] * std::exp(sum[p] / weights);
  }
}

}  // namespace tilewright::tuner
