// SPDX-License-Identifier: Apache-2.0
// Compiling ahead, for targets that need not be here.
#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "tuner/clock.h"
#include "tuner/engine_impl.h"
#include "tuner/pool.h"
#include "tuner/task.h"
#include "tuner/worker.h"

namespace tilewright {
namespace {

// One binary to have.
struct Job {
  const Arch* arch;
  std::string what;  // for messages
  Source source;
};

// What is to be noted once its binaries exist.
struct Note {
  const Arch* arch;
  Problem problem;
  std::vector<Candidate> candidates;
  std::vector<Candidate> spare;  // the next in order, should none of these be acceptable
};

constexpr int kSpare = 6;

class Prewarm {
 public:
  Prewarm(Engine::Impl& engine, const PrewarmPolicy& policy) : engine_(engine), policy_(policy) {}

  void plan(std::span<const Problem> problems, std::span<const Arch* const> archs) {
    int done = 0, total = static_cast<int>(problems.size() * archs.size());
    for (const Arch* arch : archs)
      for (const Problem& problem : problems) {
        plan_one(problem, *arch);
        progress("plan", ++done, total);
      }
  }
  void compile();
  // prepare() passes over a candidate that spills: where none is left, compiles what it would take instead.
  bool replace_unacceptable();
  PrewarmReport finish();

 private:
  void progress(const char* stage, int done, int total) {
    if (policy_.progress) policy_.progress(stage, done, total);
  }
  void plan_one(const Problem& problem, const Arch& arch);
  void want(const Problem& problem, const Arch& arch, int top);
  void add(const Arch& arch, const std::string& what, Source source);
  void fail(const std::string& what, const std::string& why) {
    ++report_.failed;
    report_.failures.push_back(what + ": " + why);
  }
  // Compiles jobs until there are none; each thread of the pool runs one of these.
  void drain(std::atomic<std::size_t>& next, std::mutex& mutex);

  Engine::Impl& engine_;
  const PrewarmPolicy& policy_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::set<std::string> keys_;     // of everything looked at
  std::set<std::string> planned_;  // target and problem
  std::vector<Job> jobs_;
  std::vector<Note> notes_;
  CompileOptions compiler_;  // set once something has to be compiled
  int done_ = 0;
  PrewarmReport report_;
};

void Prewarm::plan_one(const Problem& problem, const Arch& arch) {
  Problem bucket = tuner::bucketed(problem);
  try {
    want(bucket, arch, policy_.top);
    // What measuring needs besides, so that tuning on the target compiles nothing at all.
    const Task task = tuner::make_task(bucket, arch, {}, engine_.options.templates);
    if (task.oracle) add(arch, bucket.text() + " oracle", task.oracle());
    add(arch, "clock", tuner::clock_source());
    if (!policy_.every_bucket) return;
    for (std::int64_t rows : kBuckets)
      if (rows != bucket.rows()) want(bucket.with_rows(rows), arch, 1);
  } catch (const Error& e) {
    fail(fmt::format("{} {}", arch.name, problem.text()), e.what());
  }
}

void Prewarm::want(const Problem& problem, const Arch& arch, int top) {
  // A workload lists a shape with several numbers of rows: each bucket once, with the most candidates asked for.
  if (!planned_.insert(fmt::format("{} {} {}", arch.name, top, problem.text())).second) return;
  auto ranked = tuner::rank(problem, arch, tuner::model_of(arch));
  if (ranked.empty()) tuner::throw_unsupported(problem, arch);
  Note note{&arch, problem, {}, {}};
  for (int i : tuner::select(ranked, top + kSpare)) {
    const Candidate& c = ranked[static_cast<std::size_t>(i)].candidate;
    if (static_cast<int>(note.candidates.size()) == top) {
      note.spare.push_back(c);
      continue;
    }
    note.candidates.push_back(c);
    add(arch, problem.text() + " " + c.text(), engine_.source(problem, arch, c));
  }
  note.spare.push_back(ranked.back().candidate);
  notes_.push_back(std::move(note));
}

void Prewarm::add(const Arch& arch, const std::string& what, Source source) {
  Key key = engine_.builder.key(source, arch);
  if (!keys_.insert(key.hash()).second || engine_.builder.find(key))
    ++report_.skipped;
  else
    jobs_.push_back({&arch, fmt::format("{} {}", arch.name, what), std::move(source)});
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
      built = processes ? engine_.builder.build(job.source, *job.arch, in_process)
                        : engine_.builder.build(job.source, *job.arch);
    } catch (const std::exception& e) {
      why = e.what();
    }
    std::lock_guard lock(mutex);
    if (!why.empty())
      fail(job.what, why);
    else if (!built.compiled)
      ++report_.skipped;
    else {
      ++report_.compiled;
      report_.compile_seconds.push_back(built.seconds);
    }
    progress("compile", ++done_, static_cast<int>(jobs_.size()));
  }
}

void Prewarm::compile() {
  if (jobs_.empty()) return;
  compiler_ = engine_.builder.found();  // without one no job can succeed, so the error is thrown once and here
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int threads = policy_.jobs > 0 ? policy_.jobs : policy_.worker.empty() ? tuner::thread_count(0) : cores;
  threads = std::min(threads, static_cast<int>(jobs_.size()));
  std::vector<std::thread> crew;
  for (int i = 1; i < threads; ++i) crew.emplace_back([&] { drain(next, mutex); });
  drain(next, mutex);
  for (std::thread& t : crew) t.join();
}

bool Prewarm::replace_unacceptable() {
  jobs_.clear();
  done_ = 0;
  for (Note& note : notes_) {
    bool served = note.spare.empty();
    for (const Candidate& c : note.candidates) {
      tuner::BinaryPtr b =
          engine_.builder.find(engine_.builder.key(engine_.source(note.problem, *note.arch, c), *note.arch));
      served = served || (b && tuner::unacceptable(b->resources).empty());
    }
    if (served) continue;
    note.candidates.push_back(note.spare.front());
    note.spare.erase(note.spare.begin());
    add(*note.arch, note.problem.text() + " " + note.candidates.back().text(),
        engine_.source(note.problem, *note.arch, note.candidates.back()));
  }
  return !jobs_.empty();
}

PrewarmReport Prewarm::finish() {
  // The longest list per problem wins: another line of the workload may have asked for the bucket's first only.
  std::stable_sort(notes_.begin(), notes_.end(),
                   [](const Note& a, const Note& b) { return a.candidates.size() < b.candidates.size(); });
  for (const Note& note : notes_) engine_.note_prewarmed(note.problem, *note.arch, note.candidates);
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  return std::move(report_);
}

}  // namespace

PrewarmReport Engine::prewarm(std::span<const Problem> problems, std::span<const Arch* const> archs,
                              const PrewarmPolicy& policy) {
  tuner::check(policy);
  for (const Arch* arch : archs)
    if (!arch) throw Error(ErrorCode::invalid_argument, "archs", "null", "pointers from archs()");
  Prewarm prewarm(*impl_, policy);
  prewarm.plan(problems, archs);
  prewarm.compile();
  while (prewarm.replace_unacceptable()) prewarm.compile();
  return prewarm.finish();
}

}  // namespace tilewright
