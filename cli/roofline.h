// SPDX-License-Identifier: Apache-2.0
// What the cost model takes a device for: the time that its memory or its matrix units need at least.
#pragma once

#include <tilewright/engine.h>

#include <algorithm>

namespace tilewright::cli {

struct Roofline {
  double tbps = 0;
  double tflops = 0;  // of the matrix units; 0 if no kernel uses them

  double memory_us(const Problem& problem) const { return problem.min_bytes() / tbps / 1e6; }
  double compute_us(const Problem& problem) const { return tflops > 0 ? problem.ops() / tflops / 1e6 : 0; }
  double us(const Problem& problem) const { return std::max(memory_us(problem), compute_us(problem)); }

  // What a candidate for this problem can reach, if that is more.
  void add(const Problem& problem, const Device& device, const Candidate& candidate);
};

}  // namespace tilewright::cli
