// SPDX-License-Identifier: Apache-2.0
// The parts of an Engine. Thread-safe: each part says how.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tilewright/engine.h>

#include "jit/kernel.h"
#include "tuner/build/build.h"
#include "tuner/choose/choices.h"
#include "tuner/choose/history.h"
#include "tuner/choose/rank.h"
#include "tuner/log.h"
#include "tuner/measure/search.h"
#include "tuner/prepared.h"
#include "tuner/recorder.h"
#include "tuner/rows/rows.h"
#include "tuner/workspaces.h"

namespace tilewright {

namespace tuner {

// A stored row of a problem that differs from another in its sizes alone.
struct Near {
  Grade grade;      // same_bucket: the sizes are in one bucket; imported: that, but of somebody else's; else neighbour
  double distance;  // octaves
  StoredChoice row;
};

// Throws Error (invalid_argument) naming the field.
void check(const TunePolicy& policy);
void check(const PrewarmPolicy& policy);
void check(const Task& task);
[[noreturn]] void throw_unsupported(const Problem& problem, const Arch& arch);  // with the reason of every family
// Whether a family other than `reference` has a candidate for the problem's bucket.
bool has_kernels(const Problem& problem, const Arch& arch);
Problem packed_for(const Problem& problem, const Arch& arch);  // Engine::packed_for()

}  // namespace tuner

struct Engine::Impl {
  explicit Impl(Options given);

  // ---- choices (choose.cpp)
  // The stored choice, else that of another problem of the same size bucket, else that of the nearest size. Nothing
  // that today's rules refuse, or that failed here since.
  std::optional<Choice> stored_choice(const Problem& problem, const Device& device, const tuner::History& history);
  // What stored_choice() takes of other problems. `bucket_only`: and of no more than the problem's size bucket.
  std::optional<tuner::Near> near(const Problem& problem, const Device& device, const tuner::History& history,
                                  bool bucket_only);
  // The choice for a problem that has none of its own, measured here for another one of its size bucket.
  std::optional<tuner::Near> tuned_in_bucket(const Problem& problem, const Device& device);
  // Of every device of the target. (explain.cpp)
  std::vector<Explanation::Stored> stored_choices(const Problem& problem, const Arch& arch);
  std::string binary_state(const Source& source, const Arch& arch);  // Explanation::binary
  // The candidates that prepare() tries, in order: stored, a neighbour's, prewarmed, ranked, and the reference last.
  // Throws Error (unsupported) if there is nothing, or if every kernel was found wrong here.
  tuner::Choices choices(const Problem& problem, const Device& device);
  using Ranking = std::shared_ptr<const std::vector<tuner::Ranked>>;
  Ranking ranking(const Problem& problem, const Device& device);  // not empty
  std::vector<Choice> ranked_choices(const Ranking& ranked, const Problem& problem, const Device& device,
                                     const tuner::History& history);
  std::vector<Outcome> outcomes(const std::string& key, const Device& device);  // with this driver and compiler
  tuner::History history(const Problem& problem, const Device& device) {
    return tuner::History(outcomes(problem.text(), device));
  }
  // The candidates that a search of this problem starts with, its fallback, and how it continues from measurements.
  tuner::SearchRequest search_request(const Problem& problem, const Device& device, const TunePolicy& policy);
  std::vector<Candidate> prewarmed(const Problem& problem, const Arch& arch);  // what prewarm() left; may be empty
  void note_prewarmed(const std::string& key, const Arch& arch, const std::vector<Candidate>& candidates);
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const;

  // ---- which candidate serves which number of rows (choose_rows.cpp)
  // As a search of all rows stored it, else by the choices of every bucket and the cost model. Without the candidates
  // in `faulty`, unless nothing else is left. Throws as choices() does.
  tuner::RowTable rows_for(const Problem& problem, const Device& device, const std::vector<Candidate>& faulty);
  // As a search of all rows stored it, without what today's rules refuse; nothing if there was none.
  std::optional<tuner::RowTable> tuned_rows(const Problem& problem, const Device& device,
                                            const std::vector<Candidate>& faulty);
  void store_tuned_rows(const Problem& problem, const Device& device, const tuner::RowTable& table);
  // `inputs`: a line that says what the table was made from.
  void store_rows(const Problem& problem, const Device& device, const tuner::RowTable& table, std::string_view inputs);
  // What a search of one number of rows found goes into the table that one of all rows stored, if there is one.
  void teach_rows(const Problem& problem, const Device& device, const TuneReport& report);

  // ---- prepare.cpp
  jit::Watch watch(const Problem& problem, const Device& device) const;
  Kernel assemble(const Problem& problem, const Device& device);
  // Binaries of the sources; compiled in parallel where neither memory nor the store has them. A failed one is null and
  // its error is in `errors`. Throws Error (would_tune) if compiling is needed and not allowed, naming the key (a
  // problem's text, as many as sources) and what is stored for it.
  std::vector<tuner::BinaryPtr> build_all(const std::vector<Source>& sources, const std::vector<std::string>& keys,
                                          const Device& device, std::vector<std::exception_ptr>& errors);
  // prepare() found that a candidate cannot be used. `binary`: null if it did not compile.
  void pass_over(const Problem& problem, const Device& device, const Candidate& candidate, const Binary* binary,
                 LogLevel level, const std::string& why);
  TuneReport tune(const Problem& bucket, const Device& device, const TunePolicy& policy);
  TuneReport tune_rows(const Problem& problem, const Device& device, const TunePolicy& policy);
  // Locks until no other search of this Engine is under way; false if this one was cancelled first.
  bool alone(std::unique_lock<std::mutex>& lock, const Device& device, const TunePolicy& policy);
  // search(), once no other search of this Engine is under way.
  TuneReport measure_alone(tuner::SearchContext& context, const Task& task, const Device& device,
                           const tuner::SearchRequest& request);
  void forbid_compiling(const Source& source, const std::string& key, const Device& device);
  std::string stored_for(const std::string& key, const Device& device);  // readable

  Options options;
  const std::shared_ptr<tuner::Log> shared_log;  // with kernels, where launches are logged
  tuner::Log& log = *shared_log;
  jit::Nvtx nvtx;  // without functions: launches have no ranges
  Store store;
  tuner::Builder builder;
  tuner::Recorder recorder;

  tuner::Prepared prepared;
  // Shared with layers, whose graphs may outlive this.
  const std::shared_ptr<tuner::Workspaces> workspaces = std::make_shared<tuner::Workspaces>();
  std::mutex measuring;  // two searches on one GPU would time each other

  // What prewarm() left in the store, by the key's hash. A later call may evict what an earlier one compiled.
  std::mutex prewarming;
  std::map<std::string, Key> prewarmed_binaries;

  std::atomic<std::int64_t> prepares{0}, memory_hits{0}, measured{0};
};

}  // namespace tilewright
