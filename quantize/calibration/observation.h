// SPDX-License-Identifier: Apache-2.0
// Shared by what accumulates, stores and reads an Observation's histograms.
#pragma once

#include <tilewright/calibration.h>

#include <algorithm>
#include <cmath>

namespace tilewright::quantize {

inline double amax(const Observation& o) { return std::max(std::fabs(o.min), std::fabs(o.max)); }
inline double width(const Observation& o) { return std::ldexp(1.0, o.exponent); }
inline double at_momentum(double momentum, std::uint64_t batches) {
  return std::pow(momentum, static_cast<double>(batches));
}

// Of zero, and of what is empty, the exponent is that of the least float, so that every range grows from there.
inline int exponent_for(double amax, int bins) {
  int exponent = -148;  // 2^-149 < 2^-148
  if (amax > 0) std::frexp(amax, &exponent);
  int log2_bins = 0;
  while (1 << log2_bins < bins) ++log2_bins;
  return exponent - log2_bins;
}

}  // namespace tilewright::quantize
