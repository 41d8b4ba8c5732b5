// SPDX-License-Identifier: Apache-2.0
// Which candidate serves which number of rows. Times are known at some numbers of rows; between them the cost model
// knows how a candidate's tiles fill waves, so it interpolates the model's error rather than the times. Values, and
// pure functions of the problem, the target and the times.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tilewright/problem.h>
#include <tilewright/store.h>
#include <tilewright/tuning.h>

#include "jit/kernel.h"
#include "tuner/choose/rank.h"

namespace tilewright::tuner {

// Numbers of rows that a search of all rows looks at: every eighth up to 256, then sixteen an octave.
std::vector<std::int64_t> tuning_rows();

// A candidate for each row step.
struct RowTable {
  static constexpr std::size_t kMostCandidates = 256;  // what a step's byte tells apart
  std::vector<RowCandidate> candidates;
  std::array<std::uint8_t, kRowSteps> steps{};

  // Stored form; nothing for a list that is no table of today's steps.
  CandidateList list(const Problem& problem, std::string inputs) const;
  static std::optional<RowTable> of(CandidateList list);
  // Drops the candidates that serve no step. With `keep_measured`, not those that have times.
  void drop_unused(bool keep_measured);
};

class RowModel {
 public:
  RowModel(const Problem& problem, const Arch& arch, const DeviceModel& device)
      : problem_(problem), arch_(arch), device_(device) {}

  // The model alone. Precondition: a family of today has the candidate.
  double predicted(const Candidate& candidate, std::int64_t rows) { return prediction(candidate, rows).microseconds; }
  // The model, corrected by the candidate's known times: its error is interpolated between them, in octaves of rows.
  // Never above a known time at more rows, nor below one at fewer. Without known times, by the mean error of learn().
  double estimate(const RowCandidate& candidate, std::int64_t rows);
  void learn(const std::vector<RowCandidate>& candidates);
  // A gain that is not worth a binary, and one that is no reason to serve the next step by another: of a CPU's times,
  // which vary by more than a GPU's, otherwise each step would get the candidate that was lucky there.
  double thin_loss() const { return arch_.cpu ? 0.04 : 0.01; }
  double stay() const { return arch_.cpu ? 0.03 : 0.003; }
  // The cost of launches beyond the steps.
  jit::WaveCost wave_cost(const RowCandidate& candidate);

 private:
  struct Point {
    Traits traits;
    Prediction prediction;
  };
  const Point& point(const Candidate& candidate, std::int64_t rows);
  const Prediction& prediction(const Candidate& candidate, std::int64_t rows) {
    return point(candidate, rows).prediction;
  }

  const Problem problem_;
  const Arch& arch_;
  const DeviceModel device_;
  double mean_error_ = 0;                                                 // logarithm of time over prediction
  std::unordered_map<std::string, std::map<std::int64_t, Point>> known_;  // by the candidate's text
};

// Adds candidates for some numbers of rows between the buckets, if the model expects enough of `first`, the one that
// would be chosen there, to be worth a binary more.
void add_between_buckets(RowTable& table, RowModel& model,
                         const std::function<std::optional<Candidate>(std::int64_t rows)>& first);

// Gives each step the candidate that is estimated fastest at its most rows, then does without candidates while no step
// loses more than thin_loss(), since each one is a binary to load. Precondition: candidates are not empty.
void decide(RowTable& table, RowModel& model);

// What Kernel needs: a binary for each candidate, in order. Precondition: no candidate is unused.
jit::Serving serving_of(const RowTable& table, std::vector<jit::BinaryPtr> binaries, RowModel& model);

// Adjacent steps with one candidate as ranges of rows.
std::vector<RowRange> ranges_of(const RowTable& table, RowModel& model);

}  // namespace tilewright::tuner
