// SPDX-License-Identifier: Apache-2.0
// A histogram of a tensor's values and the range that calibration keeps of them, as a picture.
#pragma once

#include <tilewright/calibration.h>

#include <string>

namespace tilewright::cli {

struct HistogramPlot {
  std::string title, subtitle;
  Observation seen;  // with a histogram and at least one value
  ClipRange clip;
};

// SVG: counts on a logarithmic axis over values, those outside the clip in another colour, a line at each of its ends.
std::string draw(const HistogramPlot& plot);

}  // namespace tilewright::cli
