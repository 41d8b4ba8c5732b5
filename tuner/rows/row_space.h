// SPDX-License-Identifier: Apache-2.0
// The space of a search of all numbers of rows, and what is worth doing next in it. Knows nothing of devices. One
// thread at a time.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <tilewright/problem.h>

#include "tuner/choose/rank.h"
#include "tuner/rows/error_model.h"

namespace tilewright::tuner {

// A candidate that a search considers. Vectors have an element for each point.
struct RowContender {
  Ranked ranked;                  // as the first list has it
  std::int64_t listed = 0;        // that list's number of rows
  std::vector<double> predicted;  // microseconds
  std::vector<double> measured;   // 0: not measured
  bool tried = false;             // it was built, at least
  bool failed = false;            // and cannot be used
};

class RowSpace {
 public:
  // The `each` best ranked candidates of every point, a number of rows. The reference is left out.
  RowSpace(const Problem& problem, const Arch& arch, const DeviceModel& model, std::span<const std::int64_t> points,
           int each);

  std::span<const std::int64_t> points() const { return points_; }
  std::vector<RowContender>& contenders() { return contenders_; }
  const std::vector<RowContender>& contenders() const { return contenders_; }
  // Microseconds: measured, or else predicted and corrected by the errors of measured candidates, the more alike they
  // are.
  double estimate(int contender, int point) const;
  // At most `most` contenders that were not tried, best first: of each one the most improvement is expected, as the sum
  // of its squares over all points, beside those before it. Its estimate counts with its uncertainty, so one that is
  // unlike all others may come before one that is known to be nearly as fast as the best.
  std::vector<int> next(int most) const;
  // Points at which a contender is to be measured: where it may be the fastest, the likeliest first. One at least if it
  // was measured nowhere.
  std::vector<int> worth_measuring(int contender, int most) const;
  // No point behind the first so many is to be measured; at first all may be.
  void measure_first(int points) { measurable_ = points; }
  int measurable() const { return measurable_; }
  // Each time corrects the estimates of what was not measured.
  void record(int contender, int point, double microseconds);

 private:
  const RowContender& at(int contender) const { return contenders_[static_cast<std::size_t>(contender)]; }
  int size() const { return static_cast<int>(contenders_.size()); }
  int point_count() const { return static_cast<int>(points_.size()); }
  double least(int point) const;  // estimated time of those tried
  double improvement(double have, int contender, int point) const;

  std::vector<std::int64_t> points_;
  std::vector<RowContender> contenders_;
  int measurable_ = static_cast<int>(points_.size());
  std::optional<ErrorModel> errors_;
};

}  // namespace tilewright::tuner
