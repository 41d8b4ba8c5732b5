// SPDX-License-Identifier: Apache-2.0
// The space of a search of all numbers of rows, and what is worth doing next in it. Knows nothing of devices. One
// thread at a time.
#pragma once

#include <span>
#include <vector>

#include <tilewright/problem.h>

#include "tuner/rank.h"

namespace tilewright::tuner {

// A candidate that a search considers. Vectors have an element for each point.
struct RowContender {
  Ranked ranked;                  // as the first list has it
  std::int64_t listed = 0;        // that list's number of rows
  std::vector<double> predicted;  // microseconds
  std::vector<double> measured;   // 0: not measured
  std::vector<double> estimated;  // measured, or else predicted and corrected
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
  // At most `most` contenders that were not tried, best first: each one adds the most to those before it, by estimated
  // times over all points. None whose share would be less than kLeastGain.
  std::vector<int> next(int most) const;
  // Points at which a contender is to be measured: where it may be the fastest, the likeliest first. One at least if it
  // was measured nowhere.
  std::vector<int> worth_measuring(int contender, int most) const;
  // Corrects the estimates by what was measured since: a contender's by its own errors, interpolated between its
  // points; those of contenders that were not measured by the errors of those like them.
  void learn();

 private:
  double least(std::size_t point) const;  // estimated time of those tried

  std::vector<std::int64_t> points_;
  std::vector<double> weights_;  // of the points: every octave counts as much
  std::vector<RowContender> contenders_;
};

}  // namespace tilewright::tuner
