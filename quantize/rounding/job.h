// SPDX-License-Identifier: Apache-2.0
// What a call of post_training.h quantizes: its arguments, checked, and what GPTQ does alike on the host and on
// devices.
#pragma once

#include <tilewright/post_training.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "quantize/rounding/hessian.h"
#include "quantize/rounding/rounding.h"

namespace tilewright::quantize {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// What one call quantizes, checked.
struct Job {
  LinearWeight layer;
  std::string name;
  const Hessian::Sums& hessian;
  Rounder rounder;
  std::int64_t group = 0, groups = 0;
  int threads = 1;

  // Columns in the order in which they are rounded, and the column of the streams that each becomes.
  std::vector<std::int32_t> order, places;
  bool static_groups = false;        // else groups are of neighbours in `order`
  const Tiles* factor = nullptr;     // of the Hessian in `order`; none: columns do not correct each other
  double added = 0;                  // to the diagonal before it was factored
  std::vector<bool> dead = {};       // columns of w whose weights become 0; empty: none
  std::vector<float> multiply = {};  // columns of w by these; empty: 1
  bool clip = false;

  Job(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target);

  std::int64_t strips() const { return (layer.n + kStrip - 1) / kStrip; }
  // Throws the Error of a group whose weights, from low to high, have no finite scale.
  [[noreturn]] void refuse_scale(std::int64_t row, std::int64_t group, float low, float high) const;
  std::int64_t group_of(std::int64_t i) const { return (static_groups ? order[at(i)] : i) / group; }
};

struct GptqJob {
  GptqJob(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target, const GptqOptions& options);

  Job job;
  std::vector<std::int32_t> stored = {};  // the streams' order; empty if it is w's
  double mean = 1;                        // of H[j, j] of live columns
  double damping;                         // asked for; after damp() what was used
  std::int64_t dead = 0;

  // Calls factor(damping) with what was asked for and then more, until it returns true. Throws Error if it never does.
  template <class F>
  void damp(F factor) {
    while (!factor(damping)) damp_more();
  }
  void finish(QuantizedLinear& q);

 private:
  void damp_more();
};

}  // namespace tilewright::quantize
