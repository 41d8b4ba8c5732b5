// SPDX-License-Identifier: Apache-2.0
// The jobs of `bench conv`: layers by rows of formats, with what is asked of each.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tilewright/conv.h>

#include "bench/bench.h"

namespace tilewright::bench {

enum class ConvMeasure {
  ratio,      // speed over the rival's, at least
  copy_rate,  // the problem's bytes in its time, as a share of what a copy moves, at least
  fma_rate,   // its operations in its time, as a share of what the single-precision units could do, at least
  larger,     // time over that of the fastest larger size of the layer, at most
};

struct ConvGoal {
  ConvMeasure measure = ConvMeasure::ratio;
  double value = 0;   // 0: nothing is asked for
  std::string group;  // of the summary
};

struct ConvJob {
  std::string label;                     // the row's: "bf16"
  std::string layer;                     // "1"
  std::string title;                     // of the layer
  std::string problem;                   // one that is no Problem is a job without a kernel
  std::vector<std::string> rivals = {};  // of kCudnnRivals; the fastest plan of all of them counts
  std::string base = {};                 // or a problem of our own that is the rival
  ConvGoal goal = {};
  std::string mean = {};      // a group whose geometric mean the ratio enters besides; empty: none
  std::string weighted = {};  // a group of calls whose times are added up, `calls` of this one; empty: none
  int calls = 0;
  bool in_passes = false;  // the rival computes the convolution alone: passes_of() is done besides
  bool four_bits = false;  // x is rounded to four bits, which the host's sums are not
  std::string whole = {};  // the layer that this one is a part of; empty: of none
};

// What is asked for in geometric means, by the group's name; 0: nothing.
double mean_asked(const std::string& group);

// What is asked for of a group of calls, the rival's time over ours, and how many calls it has.
struct ConvCalls {
  double asked = 0;
  int calls = 0;
};
ConvCalls calls_asked(const std::string& group);

// A pass over memory that a program makes beside a convolution that computes nothing else.
struct Pass {
  const char* name;
  std::size_t bytes;  // of a copy that moves as much: half of what is read and written
};
// Of a problem with a cache, a bias or a residual, as PyTorch programs call cuDNN: the cached frames and x become one
// tensor, which is padded into another; the bias and the residual are added to y, one after the other.
std::vector<Pass> passes_of(const Conv& conv);

// By rows, and within a row by layers. settings.rows: labels or parts of them, by |; layers: numbers and names by
// commas, "judged" for the twelve (the default), "all" for all; sizes: percentages by commas of a layer's width, which
// then are the jobs instead of whole layers; problem: PROBLEM@RIVAL|... instead of rows and layers. Layers whose
// weights are no whole blocks of the row's format are left out. Throws Error naming what is none of these.
std::vector<ConvJob> conv_jobs(const Settings& settings);

}  // namespace tilewright::bench
