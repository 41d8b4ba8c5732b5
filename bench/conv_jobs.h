// SPDX-License-Identifier: Apache-2.0
// The jobs of `bench conv`: layers by rows of formats, with what is asked of each.
#pragma once

#include <string>
#include <vector>

#include <tilewright/conv.h>

#include "bench/bench.h"

namespace tilewright::bench {

enum class ConvMeasure {
  ratio,      // speed over the rival's, at least
  copy_rate,  // the problem's bytes in its time, as a share of what a copy moves, at least
  mean,       // as ratio, but it is the geometric mean of a group that is asked for
};

struct ConvGoal {
  ConvMeasure measure = ConvMeasure::ratio;
  double value = 0;   // 0: nothing is asked for
  std::string group;  // of the summary
};

struct ConvJob {
  std::string label;                // the row's: "bf16"
  std::string layer;                // "1"
  std::string title;                // of the layer
  std::string problem;              // one that is no Problem is a job without a kernel
  std::vector<std::string> rivals;  // of kCudnnRivals; the fastest plan of all of them counts
  std::string base;                 // or a problem of our own that is the rival
  ConvGoal goal;
  std::string mean;   // a group whose geometric mean the ratio enters besides; empty: none
  std::string whole;  // the layer that this one is a part of; empty: of none
};

// What is asked for in geometric means, by the group's name; 0: nothing.
double mean_asked(const std::string& group);

// By rows, and within a row by layers. settings.rows: labels or parts of them, by |; layers: numbers and names by
// commas, "judged" for the twelve (the default), "all" for all; problem: PROBLEM@RIVAL|... instead of rows and layers.
// Layers whose weights are no whole blocks of the row's format are left out. Throws Error naming what is none of these.
std::vector<ConvJob> conv_jobs(const Settings& settings);

}  // namespace tilewright::bench
