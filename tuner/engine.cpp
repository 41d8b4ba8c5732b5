// SPDX-License-Identifier: Apache-2.0
#include "tilewright/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include <fmt/format.h>

#include <tilewright/error.h>
#include <tilewright/host_archs.h>
#include <tilewright/operation.h>

#include "jit/context.h"
#include "jit/device.h"
#include "support/must_be.h"
#include "templates/common/families.h"
#include "tuner/engine_impl.h"
#include "tuner/measure/launch.h"
#include "tuner/measure/search.h"
#include "tuner/rows/search_rows.h"
#include "tuner/task.h"

namespace tilewright {
namespace tuner {
namespace {

void require(bool right, const char* field, std::string value, const char* allowed) {
  if (!right) throw Error(ErrorCode::invalid_argument, field, std::move(value), allowed);
}

}  // namespace

std::size_t PreparedHash::operator()(const PreparedKey& key) const {
  return key.problem.hash() ^ (static_cast<std::uint64_t>(key.ordinal) + 1) * 0x9e3779b97f4a7c15ull ^ key.context;
}

bool PreparedEqual::operator()(const PreparedKey& a, const PreparedKey& b) const {
  return a.ordinal == b.ordinal && a.context == b.context && a.problem.same_but_rows(b.problem);
}

PreparedKey prepared_key(const Problem& problem, const Device& device) {
  return {problem, device.impl()->ordinal, device.impl()->context_id};
}

void check(const TunePolicy& p) {
  require(p.max_candidates >= 1, "max_candidates", std::to_string(p.max_candidates), "must be at least 1");
  require(std::isfinite(p.budget_seconds) && p.budget_seconds >= 0, "budget_seconds",
          fmt::format("{}", p.budget_seconds), "must be 0 or more seconds");
  require(p.max_binaries >= 1 && p.max_binaries <= 256, "max_binaries", std::to_string(p.max_binaries),
          "must be 1 to 256");
  require(p.patience >= 0, "patience", std::to_string(p.patience), "must be 0 (never stop early) or more");
  require(p.jobs >= 0 && p.jobs <= 256, "jobs", std::to_string(p.jobs), "must be 0 (one per core) to 256");
  require(std::isfinite(p.cold_bytes) && p.cold_bytes >= 0, "cold_bytes", fmt::format("{}", p.cold_bytes),
          "must be 0 or more bytes");
}

void check(const PrewarmPolicy& p) {
  require(p.top >= 1, "top", std::to_string(p.top), "must be at least 1");
  require(p.jobs >= 0 && p.jobs <= 256, "jobs", std::to_string(p.jobs), "must be 0 (one per core) to 256");
}

void check(const Task& task) {
  require(!task.key.empty(), "task.key", "", "must be a text that names what is computed");
  require(!task.candidates.empty(), "task.candidates", "", "must have at least one");
  require(bool(task.source), "task.source", "", "must be a function");
  require(bool(task.arguments), "task.arguments", "", "must be a function");
  require(task.rows > 0 && task.cols >= 0, "task.rows, task.cols", "", "must be the extents to measure at");
}

}  // namespace tuner

namespace {

StoreOptions store_options(const Options& o, tuner::Log& log) {
  StoreOptions s;
  s.path = o.cache;
  s.shipped = o.shipped;
  s.cap = o.cache_cap;
  s.allow_shared = o.allow_shared;
  s.read_only = o.cache_read_only;
  s.log = [&log](LogLevel level, std::string_view message) { log(level, message); };
  return s;
}

Options checked(Options o) {
  if (o.jobs < 0 || o.jobs > 256) throw must_be("options.jobs", o.jobs, "0 (one per core) to 256");
  if (o.cache_cap < 0) throw must_be("options.cache_cap", o.cache_cap, "0 or more bytes");
  if (o.prepared_cap < 1) throw must_be("options.prepared_cap", o.prepared_cap, "at least 1");
  return o;
}

}  // namespace

Engine::Impl::Impl(Options given)
    : options(checked(std::move(given))),
      shared_log(std::make_shared<tuner::Log>(options.log, options.log_level.value_or(LogLevel::debug))),
      store(store_options(options, log)),
      builder(store, CompileOptions::of(options), log, options.same_nvrtc),
      recorder(options.record, log),
      prepared(static_cast<std::size_t>(options.prepared_cap)) {
  for (const std::string& warning : options.warnings) log.warn(warning);
  if (options.nvtx.empty()) return;
  std::string why;
  nvtx = jit::Nvtx::open(options.nvtx, why);
  if (!nvtx.push)
    log.warn(
        fmt::format("launches have no NVTX ranges, because no library of NVTX was opened; TILEWRIGHT_NVTX or "
                    "Options::nvtx may name its path: {}",
                    why));
}

Engine::Engine(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Engine::~Engine() { impl_->store.touch_all(); }

Kernel Engine::prepare(const Problem& problem, const Device& device, Stream stream) {
  const std::int64_t now = impl_->prepares.fetch_add(1, std::memory_order_relaxed);
  if (impl_->recorder.on()) impl_->recorder.add(problem);
  const tuner::PreparedKey key = tuner::prepared_key(problem, device);
  if (std::optional<Kernel> kernel = impl_->prepared.find(key, now)) {
    impl_->memory_hits.fetch_add(1, std::memory_order_relaxed);
    return *kernel;
  }
  // Loading a module is no more allowed under capture than compiling one is: it would invalidate the capture.
  if (jit::capturing(device, nullptr) || (stream && jit::capturing(device, stream)))
    throw Error(ErrorCode::would_tune, "stream", "capturing",
                "must not be capturing: call prepare() for this problem before the capture");
  // Inside the user's log callback this thread must not wait for what may be its own call, further out.
  return impl_->prepared.make(key, now, !impl_->log.inside(), [&] {
    if (impl_->options.tune) {
      const Problem bucket = tuner::bucketed(problem);
      const auto known = impl_->store.find_choice(tuner::choice_key(device), bucket.text());
      if (known ? known->imported : !impl_->tuned_in_bucket(bucket, device)) impl_->tune(bucket, device, {});
    }
    return impl_->assemble(problem, device);
  });
}

TuneReport Engine::tune(const Problem& problem, const Device& device, const TunePolicy& policy) {
  tuner::check(policy);
  struct Forget {  // the next prepare() takes the new choice, or none that was found wrong
    tuner::Prepared& prepared;
    const tuner::PreparedKey key;
    ~Forget() { prepared.forget(key); }
  } forget{impl_->prepared, tuner::prepared_key(problem, device)};
  if (policy.all_rows && !problem.fixed_rows()) return impl_->tune_rows(problem, device, policy);
  return impl_->tune(tuner::bucketed(problem), device, policy);
}

TuneReport Engine::Impl::tune(const Problem& bucket, const Device& device, const TunePolicy& policy) {
  // What was measured for other sizes of the bucket answers, unless it is to be measured here.
  if (!policy.retune && !policy.exhaustive)
    if (const auto near = tuned_in_bucket(bucket, device)) {
      TuneReport report;
      report.key = near->row.problem;
      report.choice = {near->row.candidate, near->grade, near->row.microseconds};
      report.first = tuner::ranked_first(bucket, device.arch(), tuner::model_of(device)).value();
      report.outcomes = outcomes(near->row.problem, device);
      for (Outcome& o : report.outcomes) o.stored = true;
      report.stopped = "all";
      return report;
    }
  const tuner::SearchRequest request = search_request(bucket, device, policy);
  const Task task = tuner::make_task(bucket, device.arch(), request.candidates, options.templates);
  tuner::SearchContext context{store, builder, log, measured, options.compile};
  TuneReport report = measure_alone(context, task, device, request);
  if (report.measured > 0) teach_rows(bucket, device, report);
  return report;
}

bool Engine::Impl::alone(std::unique_lock<std::mutex>& lock, const Device& device, const TunePolicy& policy) {
  if (jit::capturing(device, nullptr))
    throw Error(ErrorCode::would_tune, "stream", "capturing",
                "must not be capturing: measuring cannot be part of a capture");
  // Polled rather than timed: ThreadSanitizer does not see std::timed_mutex, and a search takes seconds.
  lock = std::unique_lock(measuring, std::defer_lock);
  for (; !lock.try_lock(); std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    if (policy.cancelled && policy.cancelled()) return false;
  return true;
}

TuneReport Engine::Impl::measure_alone(tuner::SearchContext& context, const Task& task, const Device& device,
                                       const tuner::SearchRequest& request) {
  std::unique_lock<std::mutex> lock;
  if (alone(lock, device, request.policy)) return tuner::search(context, task, device, request);
  TuneReport report;
  report.key = task.key;
  report.first = request.candidates.front();
  report.choice = {request.candidates.front(), Grade::ranked, 0};
  report.stopped = "cancelled";
  return report;
}

TuneReport Engine::Impl::tune_rows(const Problem& problem, const Device& device, const TunePolicy& policy) {
  tuner::RowModel model(problem, device.arch(), tuner::model_of(device));
  TuneReport report;
  report.key = problem.text();
  if (auto table = policy.retune ? std::nullopt : tuned_rows(problem, device, {})) {
    report.ranges = tuner::ranges_of(*table, model);
    report.stopped = "all";
  } else {
    std::unique_lock<std::mutex> lock;
    tuner::RowTable found;
    if (!alone(lock, device, policy)) {
      report.stopped = "cancelled";
    } else {
      tuner::SearchContext context{store, builder, log, measured, options.compile};
      report = tuner::search_rows(context, problem, device, policy, options.templates, found);
    }
    if (report.stopped == "cancelled") {
      report.ranges.clear();
      report.choice = choices(tuner::bucketed(problem), device).current();
    } else if (!report.noisy) {
      store_tuned_rows(problem, device, found);
    } else {
      log(LogLevel::warning,
          fmt::format("{}: timings vary, so the choices are not stored; is the device shared?", problem.text()));
    }
  }
  for (const RowRange& r : report.ranges)
    if (r.first <= problem.rows() && (r.last == 0 || problem.rows() <= r.last))
      report.choice = {r.candidate, Grade::exact, r.microseconds};
  return report;
}

TuneReport Engine::tune(const Task& task, const Device& device, const TunePolicy& policy) {
  tuner::check(policy);
  tuner::check(task);
  tuner::SearchRequest request;
  request.policy = policy;
  request.candidates = task.candidates;
  request.fallback = task.candidates.back();
  if (!policy.exhaustive && static_cast<int>(request.candidates.size()) > policy.max_candidates)
    request.candidates.resize(static_cast<std::size_t>(policy.max_candidates));
  tuner::SearchContext context{impl_->store, impl_->builder, impl_->log, impl_->measured, impl_->options.compile};
  return impl_->measure_alone(context, task, device, request);
}

Kernel Engine::prepare(const Task& task, const Device& device) {
  tuner::check(task);
  impl_->prepares.fetch_add(1, std::memory_order_relaxed);
  std::vector<Outcome> outcomes = impl_->outcomes(task.key, device);
  const tuner::History history(outcomes);
  std::vector<Candidate> order;
  const auto add = [&](const Candidate& c) {
    if (!history.wrong(c) && std::find(order.begin(), order.end(), c) == order.end()) order.push_back(c);
  };
  // A stored choice counts only while the task still offers it.
  if (auto row = impl_->store.find_choice(tuner::choice_key(device), task.key))
    if (std::find(task.candidates.begin(), task.candidates.end(), row->candidate) != task.candidates.end())
      add(row->candidate);
  for (const Candidate& c : task.candidates) add(c);
  if (order.empty()) tuner::throw_none_right("task.candidates", task.key, outcomes);
  for (std::size_t i = 0;; ++i) {
    std::vector<std::exception_ptr> errors;
    auto built = impl_->build_all({task.source(order[i])}, {task.key}, device, errors);
    bool last = i + 1 == order.size();
    if (errors[0] && last) std::rethrow_exception(errors[0]);
    if (!errors[0] && (last || tuner::unacceptable(built[0]->resources).empty()))
      return tuner::kernel_of(task, device, built[0], order[i]);
  }
}

Problem Engine::packed(const Problem& problem, const Arch& arch) const {
  return problem.operation().packed(problem, arch).value_or(problem);
}

Problem Engine::packed_for(const Problem& problem, const Arch& arch) const { return tuner::packed_for(problem, arch); }

void Engine::pack(const Problem& packed, const Device& device, Stream stream, Operand from, MutableOperand to) {
  const std::optional<Repack> repack = packed.operation().repack(packed);
  if (!repack) throw must_be("pack", "none", "tiles or panels: pass the problem that Engine::packed() returns");
  const Problem& problem = repack->problem;
  prepare(problem, device, stream).launch(stream, repack->arguments(from, to), problem.rows(), problem.cols());
}

std::vector<Planned> Engine::plan(const Problem& problem, const Arch& arch) const {
  Problem bucket = tuner::bucketed(problem);
  std::vector<Planned> planned;
  for (tuner::Ranked& r : tuner::rank(bucket, arch, tuner::model_of(arch))) {
    LaunchPlan plan = r.family->source(bucket, arch, r.candidate).plan;
    planned.push_back({std::move(r.candidate), r.prediction.microseconds, plan});
  }
  if (planned.empty()) tuner::throw_unsupported(bucket, arch);
  return planned;
}

Source Engine::emit(const Problem& problem, const Arch& arch) const {
  Problem bucket = tuner::bucketed(problem);
  // A choice belongs to a model of GPU or CPU: with one here, of this target, its choice; else the ranked first.
  const auto cpus = host_archs();
  const bool own = std::find(cpus.begin(), cpus.end(), &arch) != cpus.end();
  if (own || (!arch.cpu && Device::count(impl_->options.driver) > 0)) {
    Device device =
        own ? Device::open_cpu({.parallel_for = {}, .target = arch.name}) : Device::open(0, impl_->options.driver);
    if (&device.arch() == &arch || std::string_view(device.arch().name) == arch.name)
      if (auto stored = impl_->stored_choice(bucket, device, impl_->history(bucket, device)))
        return impl_->source(bucket, arch, stored->candidate);
  }
  auto ranked = tuner::rank(bucket, arch, tuner::model_of(arch));
  if (ranked.empty()) tuner::throw_unsupported(bucket, arch);
  return impl_->source(bucket, arch, ranked.front().candidate);
}

Choice Engine::choose(const Problem& problem, const Device& device) const {
  Problem bucket = tuner::bucketed(problem);
  Choice choice = impl_->choices(bucket, device).current();
  if (choice.grade == Grade::exact && !(bucket == problem)) choice.grade = Grade::same_bucket;
  return choice;
}

std::vector<RowRange> Engine::ranges(const Problem& problem, const Device& device) const {
  tuner::RowModel model(problem, device.arch(), tuner::model_of(device));
  return tuner::ranges_of(impl_->rows_for(problem, device, {}), model);
}

Task Engine::task(const Problem& problem, const Arch& arch) const {
  Problem bucket = tuner::bucketed(problem);
  auto ranked = tuner::rank(bucket, arch, tuner::model_of(arch));
  if (ranked.empty()) tuner::throw_unsupported(bucket, arch);
  // In the order in which tune() tries them, then the rest; the reference is last in `ranked`.
  std::vector<int> order = tuner::select(ranked, TunePolicy().max_candidates);
  std::vector<Candidate> candidates;
  std::vector<bool> used(ranked.size());
  for (int i : order) {
    used[static_cast<std::size_t>(i)] = true;
    candidates.push_back(ranked[static_cast<std::size_t>(i)].candidate);
  }
  for (std::size_t i = 0; i < ranked.size(); ++i)
    if (!used[i]) candidates.push_back(ranked[i].candidate);
  return tuner::make_task(bucket, arch, std::move(candidates), impl_->options.templates);
}

Stats Engine::stats() const {
  Stats s;
  s.prepared = impl_->prepares;
  s.memory_hits = impl_->memory_hits;
  s.compiled = impl_->builder.compiled();
  s.cache_hits = impl_->builder.cache_hits();
  s.measured = impl_->measured;
  s.warnings = impl_->log.warnings();
  s.compile_seconds = impl_->builder.seconds();
  s.built_in = impl_->builder.built_ins();
  return s;
}

const Options& Engine::options() const { return impl_->options; }
Store& Engine::store() { return impl_->store; }

const char* to_string(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::measured: return "measured";
    case OutcomeKind::pruned: return "pruned";
    case OutcomeKind::rejected: return "rejected";
    case OutcomeKind::not_compiled: return "not_compiled";
    case OutcomeKind::wrong: return "wrong";
    case OutcomeKind::failed: return "failed";
  }
  return "unknown";
}

const char* to_string(Grade grade) {
  switch (grade) {
    case Grade::exact: return "exact";
    case Grade::same_bucket: return "same_bucket";
    case Grade::imported: return "imported";
    case Grade::neighbour: return "neighbour";
    case Grade::ranked: return "ranked";
  }
  return "unknown";
}

}  // namespace tilewright
