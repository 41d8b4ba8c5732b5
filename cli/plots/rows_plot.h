// SPDX-License-Identifier: Apache-2.0
// A picture of time over the number of rows: which kernel serves which rows, and what bounds them. Pure functions.
#pragma once

#include <tilewright/tuning.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tilewright::cli {

struct TimedRows {
  std::int64_t rows = 0;
  double microseconds = 0;
  std::string name = {};  // of what was timed
};

struct RowsPlot {
  std::string title;      // the problem
  std::string device;     // that the choices belong to
  std::string rows_name;  // "m"
  std::vector<RowRange> ranges;
  std::vector<TimedRows> roofline;          // joined by lines
  std::string roofline_name;                // the rates behind it
  std::vector<TimedRows> measured, rivals;  // of a benchmark: kernels of these ranges, and others
};

// An SVG document with logarithmic axes, to kMostStepRows rows. Precondition: there is a range.
std::string draw(const RowsPlot& plot);

// The family of each candidate and the first of its knobs that tell it from the family's others.
std::vector<std::string> short_names(const std::vector<Candidate>& candidates);

}  // namespace tilewright::cli
