// SPDX-License-Identifier: Apache-2.0
// What `bench conv` concludes from the times of its rows: whether each reaches what is asked of it, and the summaries
// of several.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/conv/conv_jobs.h"

namespace tilewright::bench {

// A row. us: of our kernel, in the median of all rounds; 0 if there is none. rival_us: of the fastest rival, with the
// passes that it needs beside.
struct ConvResult {
  ConvJob job;
  double us = 0, rival_us = 0, in_a_row_us = 0, rival_in_a_row_us = 0, passes_us = 0;
  double tflops = 0, tbps = 0, value = 0, ratio = 0, error = 0, tune_seconds = 0, ops = 0;
  std::string mark = "-", note, rival, choice;
  Json rivals = Json::array(), passes = Json::array(), outcomes = Json::array(), rival_notes = Json::array();
};

// Prints a line for each row as it is added, and the tables at the end.
class ConvReport {
 public:
  // copy_tbps: what a copy moves. fma_tflops: what the single-precision units could do at the highest clock.
  ConvReport(double copy_tbps, double fma_tflops) : copy_tbps_(copy_tbps), fma_tflops_(fma_tflops) {}

  // Sets value and mark.
  void add(ConvResult r);
  // A row without a kernel falls short.
  void missing(const ConvJob& job, const std::string& why);
  Json finish();

 private:
  struct Group;

  void judge(ConvResult& r) const;
  // Time over that of the fastest larger part of the layer; 0: none was measured.
  double against_larger(const ConvResult& r) const;
  void keep(ConvResult r);
  Json summary() const;
  Group rows_of(const std::string& name) const;
  Group mean_of(const std::string& name) const;
  Group calls_of(const std::string& name) const;
  // Adds a row to a group; false if it has no value.
  static bool count(Group& g, const ConvResult& r, double value);

  const double copy_tbps_, fma_tflops_;
  std::vector<ConvResult> results_;
};

}  // namespace tilewright::bench
