// SPDX-License-Identifier: Apache-2.0
#include "tuner/rows/row_space.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include <tilewright/family.h>

namespace tilewright::tuner {
namespace {

constexpr double kLeastGain = 1e-5;   // of a further binary: squared logarithms of times, summed over the points
constexpr double kWorthwhile = 0.97;  // of the least time so far: a smaller gain is not worth a binary
constexpr double kNear = 1.08;        // an estimate within this of the least may be the fastest
constexpr double kApart = 1.07;       // least ratio of two points at which one contender is measured
// Before anything was tried: the time at a point over the least estimate, and how far off an estimate may be. It is
// little, so that the first ones cover all points rather than vary one.
constexpr double kUncertain = 1.5, kBlind = 0.02;

}  // namespace

RowSpace::RowSpace(const Problem& problem, const Arch& arch, const DeviceModel& model,
                   std::span<const std::int64_t> points, int each)
    : points_(points.begin(), points.end()) {
  const Family* reference = families(problem.op(), arch).back();
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
  }
  std::vector<Candidate> candidates;
  for (const RowContender& c : contenders_) candidates.push_back(c.ranked.candidate);
  errors_.emplace(candidates, points_);
}

double RowSpace::estimate(int contender, int point) const {
  const auto c = static_cast<std::size_t>(contender), p = static_cast<std::size_t>(point);
  if (contenders_[c].measured[p] > 0) return contenders_[c].measured[p];
  return contenders_[c].predicted[p] * std::exp(errors_->mean(c, p));
}

void RowSpace::record(int contender, int point, double microseconds) {
  const auto c = static_cast<std::size_t>(contender), p = static_cast<std::size_t>(point);
  contenders_[c].measured[p] = microseconds;
  errors_->observe(c, p, std::log(microseconds / contenders_[c].predicted[p]));
}

double RowSpace::improvement(double have, int contender, int point) const {
  const auto c = static_cast<std::size_t>(contender), p = static_cast<std::size_t>(point);
  const double deviation = errors_->observations() ? errors_->deviation(c, p) : kBlind;
  return expected_improvement(kWorthwhile * have, estimate(contender, point), deviation);
}

double RowSpace::least(int point) const {
  double us = std::numeric_limits<double>::infinity();
  for (int i = 0; i < size(); ++i)
    if (at(i).tried && !at(i).failed) us = std::min(us, estimate(i, point));
  return us;
}

std::vector<int> RowSpace::next(int most) const {
  std::vector<double> have;
  for (int p = 0; p < point_count(); ++p) {
    double us = least(p);
    if (us == std::numeric_limits<double>::infinity())
      for (int i = 0; i < size(); ++i) us = std::min(us, kUncertain * estimate(i, p));
    have.push_back(us);
  }
  std::vector<int> list;
  while (static_cast<int>(list.size()) < most) {
    int best = -1;
    double most_gain = kLeastGain;
    for (int i = 0; i < size(); ++i) {
      if (at(i).tried || std::find(list.begin(), list.end(), i) != list.end()) continue;
      // Squares: one point that is 10 % from its best is worse than ten that are 1 % from theirs.
      double gain = 0;
      for (int p = 0; p < point_count(); ++p) {
        const double improved = improvement(have[static_cast<std::size_t>(p)], i, p);
        gain += improved * improved;
      }
      if (gain > most_gain) best = i, most_gain = gain;
    }
    if (best < 0) break;
    list.push_back(best);
    for (int p = 0; p < point_count(); ++p) {
      double& us = have[static_cast<std::size_t>(p)];
      us = std::min(us, estimate(best, p));
    }
  }
  return list;
}

std::vector<int> RowSpace::worth_measuring(int contender, int most) const {
  const RowContender& c = at(contender);
  struct Open {
    double gain, ratio;  // expected improvement over the others; estimate relative to the least of theirs
    int point;
  };
  std::vector<Open> open;
  for (int p = 0; p < measurable_; ++p) {
    if (c.measured[static_cast<std::size_t>(p)] > 0) continue;
    double others = std::numeric_limits<double>::infinity();
    for (int i = 0; i < size(); ++i)
      if (i != contender && at(i).tried && !at(i).failed) others = std::min(others, estimate(i, p));
    // Alone, it is measured where its own list has it.
    if (others == std::numeric_limits<double>::infinity())
      open.push_back({points_[static_cast<std::size_t>(p)] == c.listed ? 1.0 : 0.0, 1, p});
    else
      open.push_back({improvement(others, contender, p), estimate(contender, p) / others, p});
  }
  std::sort(open.begin(), open.end(),
            [](const Open& a, const Open& b) { return a.gain != b.gain ? a.gain > b.gain : a.point < b.point; });
  // Apart from each other: between two that are near, the model knows as well.
  std::vector<int> list;
  const auto near_another = [&](int p) {
    for (int q = 0; q < point_count(); ++q) {
      if (c.measured[static_cast<std::size_t>(q)] <= 0 && std::find(list.begin(), list.end(), q) == list.end())
        continue;
      const auto a = static_cast<double>(points_[static_cast<std::size_t>(p)]),
                 b = static_cast<double>(points_[static_cast<std::size_t>(q)]);
      if (std::max(a, b) / std::min(a, b) < kApart) return true;
    }
    return false;
  };
  const bool known = std::any_of(c.measured.begin(), c.measured.end(), [](double us) { return us > 0; });
  for (const Open& o : open)
    if (static_cast<int>(list.size()) < most && (!known || o.ratio <= kNear) && !near_another(o.point))
      list.push_back(o.point);
  return list;
}

}  // namespace tilewright::tuner
