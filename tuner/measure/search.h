// SPDX-License-Identifier: Apache-2.0
// Search: one task tuned on one device. Candidates compile in the background while others are verified and timed; every
// fate is stored as it is known, so that a cancelled search loses nothing. One thread at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <tilewright/task.h>
#include <tilewright/tuning.h>

#include "tuner/build/build.h"
#include "tuner/log.h"
#include "tuner/measure/statistics.h"

namespace tilewright::tuner {

struct SearchContext {
  Store& store;
  Builder& builder;
  Log& log;
  std::atomic<std::int64_t>& measured;  // counts candidates timed
  bool compile = true;                  // Options::compile
};

struct SearchRequest {
  std::vector<Candidate> candidates;  // in the order to try; the default first. Not empty
  Candidate fallback;                 // used, never stored, when all of them fail and it does not
  TunePolicy policy;
  // True if the search space has the candidate; `candidates` may be a part of it. Empty: they are all of it.
  std::function<bool(const Candidate&)> offers;
  // Called for more when all of `candidates` were tried and fewer than policy.max_candidates were tried: what to try
  // next, given every outcome so far. May be empty, and may answer with nothing.
  std::function<std::vector<Candidate>(const std::vector<Outcome>& outcomes, int most)> refine;
};

// Throws Error: unsupported with the reasons if no candidate can be used, the fallback included; library_missing;
// would_tune; driver_failed if the device is lost.
TuneReport search(SearchContext& context, const Task& task, const Device& device, const SearchRequest& request);

}  // namespace tilewright::tuner
