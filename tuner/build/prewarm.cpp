// SPDX-License-Identifier: Apache-2.0
// Compiling ahead, for targets that need not be here.
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include <fmt/format.h>

#include <tilewright/error.h>
#include <tilewright/operation.h>

#include "support/must_be.h"
#include "tuner/build/pool.h"
#include "tuner/build/worker.h"
#include "tuner/engine_impl.h"
#include "tuner/measure/clock.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

// One binary to have.
struct Job {
  const Arch* arch;
  std::string what;  // for messages
  Source source;
  std::string key;  // its hash
};

// The candidates of a problem, or of a caller's own task, that are noted once their binaries exist.
struct Note {
  const Arch* arch;
  std::string key;  // the problem's text
  std::function<Source(const Candidate&)> source;
  std::vector<Candidate> candidates;
  std::vector<Candidate> spare;  // the next in order, should none of these be acceptable
};

constexpr int kSpare = 6;

// What is compiled ahead is for other processes: it has to reach the file.
void require_store(const Store& store) {
  std::string why = store.unwritable();
  // A lock passes; what degraded() stands for does not.
  for (int i = 0; i < 50 && !why.empty() && !store.degraded(); ++i, why = store.unwritable())
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  if (!why.empty())
    throw Error(ErrorCode::io, "cache", store.path(), "must be writable, since it keeps what is compiled: " + why);
}

class Prewarm {
 public:
  // Throws Error (io) if the cache keeps nothing.
  Prewarm(Engine::Impl& engine, const PrewarmPolicy& policy) : engine_(engine), policy_(policy) {
    require_store(engine.store);
  }

  void plan(std::span<const Problem> problems, std::span<const Arch* const> archs) {
    int done = 0, total = static_cast<int>(problems.size() * archs.size());
    for (const Arch* arch : archs)
      for (const Problem& problem : problems) {
        if (cancelled()) return;
        plan_one(problem, *arch);
        progress("plan", ++done, total);
      }
  }
  void plan(const Task& task, std::span<const Arch* const> archs);
  void compile();
  // prepare() passes over a candidate that spills: where none is left, compiles what it would take instead.
  bool replace_unacceptable();
  bool cancelled() { return report_.cancelled = report_.cancelled || (policy_.cancelled && policy_.cancelled()); }
  PrewarmReport finish();

 private:
  void progress(const char* stage, int done, int total) {
    if (policy_.progress) policy_.progress(stage, done, total);
  }
  void plan_one(const Problem& problem, const Arch& arch);
  void want(const Problem& problem, const Arch& arch, int top);
  void want_all_rows(const Problem& bucket, const Arch& arch);  // what prepare() will load
  void want(Note note, std::size_t top);
  void measuring_needs(const Task& task, const Arch& arch);
  void add(const Arch& arch, const std::string& what, Source source);
  void fail(const std::string& what, const std::string& why) {
    ++report_.failed;
    report_.failures.push_back(what + ": " + why);
  }
  void kept(Key key);
  int count_evicted();
  // Compiles jobs until there are none, or until the store takes nothing; each thread of the pool runs one of these.
  void drain(std::atomic<std::size_t>& next, std::mutex& mutex);
  std::string not_kept(const Job& job, const tuner::Built& built);

  Engine::Impl& engine_;
  const PrewarmPolicy& policy_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::map<std::string, int> repeats_;  // by key's hash, of everything looked at: how many more wanted that binary
  std::set<std::string> failed_;        // hashes
  std::set<std::string> planned_;       // target and problem
  std::vector<Job> jobs_;
  std::vector<Note> notes_;
  CompileOptions compiler_;  // set once something has to be compiled
  int done_ = 0;
  PrewarmReport report_;
};

void Prewarm::plan_one(const Problem& asked, const Arch& arch) {
  try {
    const Problem problem = tuner::packed_for(asked, arch);
    if (!(problem == asked))
      engine_.log(LogLevel::info, fmt::format("{}: compiled for {} as {}", asked.text(), arch.name, problem.text()));
    const Problem bucket = tuner::bucketed(problem);
    if (const std::string why = only_reference(problem, arch); !why.empty() && !policy_.reference)
      return fail(fmt::format("{} {}", arch.name, asked.text()), why);
    want(bucket, arch, policy_.top);
    measuring_needs(tuner::make_task(bucket, arch, {}, engine_.options.templates), arch);
    if (policy_.every_bucket) want_all_rows(bucket, arch);
    // Whoever serves packed weights packs them first.
    if (const auto repack = problem.operation().repack(problem)) want(repack->problem, arch, policy_.top);
  } catch (const Error& e) {
    fail(fmt::format("{} {}", arch.name, asked.text()), e.what());
  }
}

void Prewarm::plan(const Task& task, std::span<const Arch* const> archs) {
  for (const Arch* arch : archs) {
    want({arch, task.key, task.source, {}, task.candidates}, static_cast<std::size_t>(policy_.top));
    measuring_needs(task, *arch);
  }
}

// So that tuning on the target compiles nothing at all.
void Prewarm::measuring_needs(const Task& task, const Arch& arch) {
  if (task.oracle) add(arch, task.key + " oracle", task.oracle());
  if (!arch.cpu) add(arch, "clock", tuner::clock_source());
}

void Prewarm::want(const Problem& problem, const Arch& arch, int top) {
  // A workload lists a shape with several numbers of rows: each bucket once, with the most candidates asked for.
  if (!planned_.insert(fmt::format("{} {} {}", arch.name, top, problem.text())).second) return;
  auto ranked = tuner::rank(problem, arch, tuner::model_of(arch));
  if (ranked.empty()) tuner::throw_unsupported(problem, arch);
  const auto source = [this, problem, &arch](const Candidate& c) { return engine_.source(problem, arch, c); };
  Note note{&arch, problem.text(), source, {}, {}};
  for (int i : tuner::select(ranked, top + kSpare)) note.spare.push_back(ranked[static_cast<std::size_t>(i)].candidate);
  if (note.spare.back() != ranked.back().candidate) note.spare.push_back(ranked.back().candidate);
  want(std::move(note), static_cast<std::size_t>(top));
}

void Prewarm::want_all_rows(const Problem& bucket, const Arch& arch) {
  const tuner::DeviceModel device = tuner::model_of(arch);
  tuner::RowTable table;
  for (const std::int64_t rows : kBuckets) {
    const Problem other = bucket.with_rows(rows);
    if (!(other == bucket)) want(other, arch, 1);
    if (auto first = tuner::ranked_first(other, arch, device))
      table.candidates.push_back({std::move(*first), rows, {}});
  }
  if (bucket.fixed_rows() || table.candidates.empty()) return;
  tuner::RowModel model(bucket, arch, device);
  const std::size_t buckets = table.candidates.size();
  tuner::add_between_buckets(
      table, model, [&](std::int64_t rows) { return tuner::ranked_first(bucket.with_rows(rows), arch, device); });
  for (std::size_t i = buckets; i < table.candidates.size(); ++i)
    want(bucket.with_rows(table.candidates[i].listed), arch, 1);
}

// Compiles the first `top` of the spare candidates.
void Prewarm::want(Note note, std::size_t top) {
  const auto end = note.spare.begin() + static_cast<std::ptrdiff_t>(std::min(top, note.spare.size()));
  note.candidates.assign(note.spare.begin(), end);
  note.spare.erase(note.spare.begin(), end);
  for (const Candidate& c : note.candidates) add(*note.arch, note.key + " " + c.text(), note.source(c));
  notes_.push_back(std::move(note));
}

void Prewarm::add(const Arch& arch, const std::string& what, Source source) {
  if (source.text.empty()) return;  // a function of the library
  const Key key = engine_.builder.key(source, arch);
  const std::string hash = key.hash();
  if (const auto [repeats, first] = repeats_.emplace(hash, 0); !first)
    ++repeats->second;
  else if (engine_.builder.find(key)) {
    ++report_.skipped;
    kept(key);
  } else
    jobs_.push_back({&arch, fmt::format("{} {}", arch.name, what), std::move(source), hash});
}

void Prewarm::kept(Key key) {
  std::lock_guard lock(engine_.prewarming);
  std::string hash = key.hash();
  engine_.prewarmed_binaries.emplace(std::move(hash), std::move(key));
}

// The store takes every binary, and makes room by evicting others: of a workload that exceeds the cap, the first ones.
int Prewarm::count_evicted() {
  std::lock_guard lock(engine_.prewarming);
  std::vector<const Key*> missing;
  for (const auto& [hash, key] : engine_.prewarmed_binaries) missing.push_back(&key);
  // Looked for twice, because a look-up that meets another process's lock misses, too.
  for (int i = 0; i < 2 && !missing.empty(); ++i)
    std::erase_if(missing, [&](const Key* key) { return engine_.store.find_binary(*key).has_value(); });
  return static_cast<int>(missing.size());
}

// Why what a job made is not in the store; empty if it is. Others may be writing, so that one refusal says little.
std::string Prewarm::not_kept(const Job& job, const tuner::Built& built) {
  constexpr int kAttempts = 10;  // each waits for other writers for most of a second
  bool stored = built.stored;
  for (int i = 0; i < kAttempts && !stored && !engine_.store.degraded(); ++i)
    stored = engine_.store.put_binary(engine_.builder.key(job.source, *job.arch), *built.binary);
  if (engine_.store.degraded()) return engine_.store.unwritable();
  return stored ? "" : "compiled, but the cache did not take it";
}

void Prewarm::drain(std::atomic<std::size_t>& next, std::mutex& mutex) {
  tuner::Worker worker(policy_.worker, compiler_);
  bool processes = !policy_.worker.empty() && tuner::thread_count(policy_.jobs) > 2;
  for (std::size_t i = next++; i < jobs_.size(); i = next++) {
    const Job& job = jobs_[i];
    tuner::Built built;
    std::string why;
    try {
      auto in_process = [&](const Source& s, const Arch& a) { return worker.compile(s, a); };
      built = processes && !job.arch->cpu ? engine_.builder.build(job.source, *job.arch, in_process)
                                          : engine_.builder.build(job.source, *job.arch);
      why = not_kept(job, built);
    } catch (const std::exception& e) {
      why = e.what();
    }
    // Not job.key: the compiler may turn out to be another one than the store remembered.
    if (why.empty()) kept(engine_.builder.key(job.source, *job.arch));
    std::lock_guard lock(mutex);
    // Ctrl-C reaches worker processes, too: what they did not finish has not failed.
    if (cancelled()) next = jobs_.size();
    if (!why.empty() && report_.cancelled)
      failed_.insert(job.key);
    else if (!why.empty()) {
      fail(job.what, why);
      failed_.insert(job.key);
    } else if (!built.compiled)
      ++report_.skipped;
    else {
      ++report_.compiled;
      report_.compile_seconds.push_back(built.seconds);
    }
    progress("compile", ++done_, static_cast<int>(jobs_.size()));
    if (engine_.store.degraded()) next = jobs_.size();  // a full disk: whatever follows would be lost, too
  }
}

void Prewarm::compile() {
  if (jobs_.empty() || cancelled()) return;
  // Without a compiler no job can succeed, so the error is thrown once and here.
  const auto any = [&](bool cpu) {
    return std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return (job.arch->cpu != nullptr) == cpu; });
  };
  if (any(false) != jobs_.end()) compiler_ = engine_.builder.found();
  if (const auto job = any(true); job != jobs_.end()) engine_.builder.need_compiler(*job->arch);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int threads = policy_.jobs > 0 ? policy_.jobs : policy_.worker.empty() ? tuner::thread_count(0) : cores;
  threads = std::min(threads, static_cast<int>(jobs_.size()));
  const auto others = start_threads(threads - 1, [&] { drain(next, mutex); });
  drain(next, mutex);
}

bool Prewarm::replace_unacceptable() {
  jobs_.clear();
  if (report_.cancelled || engine_.store.degraded()) return false;  // finish() says why
  done_ = 0;
  for (Note& note : notes_) {
    bool served = note.spare.empty();
    for (const Candidate& c : note.candidates) {
      tuner::BinaryPtr b = engine_.builder.find(engine_.builder.key(note.source(c), *note.arch));
      served = served || (b && tuner::unacceptable(b->resources).empty());
    }
    if (served) continue;
    const Candidate next = note.spare.front();
    note.spare.erase(note.spare.begin());
    note.candidates.push_back(next);
    add(*note.arch, note.key + " " + next.text(), note.source(next));
  }
  return !jobs_.empty();
}

PrewarmReport Prewarm::finish() {
  // The longest list per problem wins: another line of the workload may have asked for the bucket's first only.
  std::stable_sort(notes_.begin(), notes_.end(),
                   [](const Note& a, const Note& b) { return a.candidates.size() < b.candidates.size(); });
  for (const Note& note : notes_) engine_.note_prewarmed(note.key, *note.arch, note.candidates);
  require_store(engine_.store);
  report_.evicted = count_evicted();
  for (const auto& [key, count] : repeats_)
    if (!failed_.contains(key)) report_.skipped += count;
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  return std::move(report_);
}

}  // namespace

namespace {

void check(const PrewarmPolicy& policy, std::span<const Arch* const> archs) {
  tuner::check(policy);
  for (const Arch* arch : archs)
    if (!arch) throw must_be("archs", "null", "pointers from archs()");
}

PrewarmReport carry_out(Prewarm& prewarm) {
  prewarm.compile();
  while (prewarm.replace_unacceptable()) prewarm.compile();
  return prewarm.finish();
}

}  // namespace

PrewarmReport Engine::prewarm(std::span<const Problem> problems, std::span<const Arch* const> archs,
                              const PrewarmPolicy& policy) {
  check(policy, archs);
  Prewarm prewarm(*impl_, policy);
  prewarm.plan(problems, archs);
  return carry_out(prewarm);
}

PrewarmReport Engine::prewarm(const Task& task, std::span<const Arch* const> archs, const PrewarmPolicy& policy) {
  check(policy, archs);
  tuner::check(task);
  Prewarm prewarm(*impl_, policy);
  prewarm.plan(task, archs);
  return carry_out(prewarm);
}

}  // namespace tilewright
