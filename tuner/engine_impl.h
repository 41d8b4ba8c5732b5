// SPDX-License-Identifier: Apache-2.0
// What an Engine is made of. Thread-safe: each part says how.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <tilewright/engine.h>

#include "tuner/build.h"
#include "tuner/log.h"
#include "tuner/rank.h"
#include "tuner/recorder.h"
#include "tuner/search.h"

namespace tilewright {

namespace tuner {

// Identity of a prepared object: the problem without its rows, and the context it was made in. Compared and hashed by
// fields: a hit must not print or parse anything.
struct PreparedKey {
  Problem problem;
  int ordinal = 0;
  unsigned long long context = 0;
};
struct PreparedHash {
  std::size_t operator()(const PreparedKey& key) const;
};
struct PreparedEqual {
  bool operator()(const PreparedKey& a, const PreparedKey& b) const;
};
PreparedKey prepared_key(const Problem& problem, const Device& device);

// Throws Error (invalid_argument) naming the field.
void check(const TunePolicy& policy);
void check(const PrewarmPolicy& policy);
[[noreturn]] void throw_unsupported(const Problem& problem, const Arch& arch);  // with the reason of every family

}  // namespace tuner

struct Engine::Impl {
  explicit Impl(Options given);

  // ---- choices (choose.cpp). `problem` is bucketed in all of them.
  // Stored choices, best fit first: exact, then a neighbour. Nothing that today's rules refuse.
  std::optional<Choice> stored_choice(const Problem& problem, const Device& device);
  std::optional<Choice> neighbour(const Problem& problem, const Key& device_key, const Arch& arch);
  // What prepare() tries, in order; the reference last. Throws Error (unsupported) if there is nothing.
  std::vector<Choice> choices(const Problem& problem, const Device& device);
  // What a search tries, in order, and its fallback.
  // What a search of this problem tries, and how it goes on from what it learns.
  tuner::SearchRequest search_request(const Problem& problem, const Device& device, const TunePolicy& policy);
  std::vector<Candidate> prewarmed(const Problem& problem, const Arch& arch);  // what prewarm() left; may be empty
  void note_prewarmed(const Problem& problem, const Arch& arch, const std::vector<Candidate>& candidates);
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const;

  // ---- prepare.cpp
  Kernel assemble(const Problem& problem, const Device& device);
  // Binaries of the sources; compiled in parallel where neither memory nor the store has them. A failed one is null and
  // its error is in `errors`. Throws Error (would_tune) if compiling is needed and not allowed.
  std::vector<tuner::BinaryPtr> build_all(const std::vector<Source>& sources, const Arch& arch, const Device* device,
                                          std::vector<std::exception_ptr>& errors);
  // prepare() found that a candidate cannot be used. `binary`: null if it did not compile.
  void pass_over(const Problem& problem, const Device& device, const Candidate& candidate, const Binary* binary,
                 const std::string& why);
  // search(), once no other search of this Engine is under way.
  TuneReport measure_alone(tuner::SearchContext& context, const Task& task, const Device& device,
                           const tuner::SearchRequest& request);
  void forbid_compiling(const Source& source, const Device* device) const;

  Options options;
  tuner::Log log;
  Store store;
  tuner::Builder builder;
  tuner::Recorder recorder;

  std::shared_mutex prepared_mutex;
  std::unordered_map<tuner::PreparedKey, Kernel, tuner::PreparedHash, tuner::PreparedEqual> prepared;
  std::mutex measuring;  // two searches on one GPU would time each other

  std::atomic<std::int64_t> prepares{0}, memory_hits{0}, measured{0};
};

}  // namespace tilewright
