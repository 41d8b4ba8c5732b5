// SPDX-License-Identifier: Apache-2.0
#include "tuner/measure/search.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <optional>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "tuner/build/pool.h"
#include "tuner/choose/history.h"
#include "tuner/measure/measure.h"
#include "tuner/measure/verify.h"

namespace tilewright::tuner {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kScreenRounds = 2;
constexpr int kBatch = 2;  // candidates asked for at a time once the first are through: few, to learn from each
constexpr double kContender = 1.12;  // a screened time within this of the best goes on to the final
constexpr std::size_t kMostContenders = 6;
constexpr double kHopeless = 4;          // one launch that slow is not worth a round
constexpr double kStoredHopeless = 1.3;  // a stored time that far behind the stored best is believed, not repeated
constexpr double kImprovement = 0.01;    // less is no reason to go on

// A candidate on its way through the search.
struct Entry {
  Outcome outcome;
  BinaryPtr binary;
  int bench = -1;       // index in the Bench; -1: not timed by this search
  double screened = 0;  // microseconds, relative to the incumbent's drift
};

class Search {
 public:
  Search(SearchContext& context, const Task& task, const Device& device, const SearchRequest& request)
      : context_(context),
        task_(task),
        device_(device),
        request_(request),
        policy_(request.policy),
        choice_key_(choice_key(device)),
        outcome_key_(outcome_key(device, context.builder.compiler(device.arch()))),
        began_(Clock::now()) {}

  TuneReport run();

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }
  // Of the budget; of a small one as much as of the default.
  double share(double part) const {
    return std::max(part * policy_.budget_seconds, std::min(policy_.budget_seconds, 32 * part));
  }
  bool cancelled() const { return policy_.cancelled && policy_.cancelled(); }
  void progress(std::string_view stage, int done, int total) const {
    if (policy_.progress) policy_.progress(stage, done, total);
  }
  std::string environment() const;
  void load_history();
  bool answered_by_history();
  bool settled_by_history(const Candidate& candidate, Entry& entry) const;
  void prepare_device();
  std::future<Built> submit(Pool& pool, const Candidate& candidate, bool last_resort = false);
  std::vector<Candidate> more(int tried);
  void walk();
  bool stop(int tried);
  Built wait(std::future<Built>& future);
  void consider(const Candidate& candidate, std::future<Built>& build, bool last_resort = false);
  void fall_back();
  void screen(Entry& entry);
  void final_rounds();
  void decide();
  void store(Entry& entry);

  SearchContext& context_;
  const Task& task_;
  Device device_;
  const SearchRequest& request_;
  const TunePolicy& policy_;
  const Rules rules_ = device_.arch().cpu ? kCpuRules : Rules();
  const Key choice_key_, outcome_key_;
  const Clock::time_point began_;

  std::map<std::string, Outcome> history_;  // by candidate text
  double best_stored_ = 0;
  std::optional<Verifier> verifier_;
  std::optional<Bench> bench_;
  std::vector<Entry> entries_;
  std::vector<int> finalists_;  // into entries_, ranked order
  int incumbent_ = -1;          // into entries_: the fastest screened
  int since_improvement_ = 0;
  double latest_ = 0;  // seconds that the latest candidate took
  TuneReport report_;
};

std::string Search::environment() const {
  char date[32];
  std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  Key k = outcome_key_;
  return k.add("date", date).transcript();
}

void Search::load_history() {
  if (policy_.retune) return;
  for (Outcome& o : context_.store.outcomes(outcome_key_, task_.key)) {
    if (o.imported) continue;  // a time, or a failure, of somebody else's is measured here before it counts
    if (o.kind == OutcomeKind::measured && o.microseconds > 0)
      best_stored_ = best_stored_ > 0 ? std::min(best_stored_, o.microseconds) : o.microseconds;
    o.stored = true;
    history_[o.candidate.text()] = std::move(o);
  }
}

// A stored choice answers while the space still has it; an exhaustive search wants every candidate to have been tried.
bool Search::answered_by_history() {
  if (policy_.retune) return false;
  std::optional<StoredChoice> choice = context_.store.find_choice(choice_key_, task_.key);
  if (!choice || choice->imported) return false;
  const auto offered = [&](const Candidate& candidate) {
    const std::vector<Candidate>& all = request_.candidates;
    return request_.offers ? request_.offers(candidate) : std::find(all.begin(), all.end(), candidate) != all.end();
  };
  // Without history (a shipped choice, or another driver's) the choice is still the best there is to know.
  for (const Candidate& c : request_.candidates)
    if (!history_.empty() && policy_.exhaustive && !history_.count(c.text())) return false;
  if (!offered(choice->candidate)) return false;
  report_.choice = {choice->candidate, Grade::exact, choice->microseconds};
  for (const auto& [text, outcome] : history_)
    if (offered(outcome.candidate)) report_.outcomes.push_back(outcome);
  report_.stopped = "all";
  return true;
}

bool Search::settled_by_history(const Candidate& candidate, Entry& entry) const {
  auto it = history_.find(candidate.text());
  if (it == history_.end()) return false;
  const Outcome& o = it->second;
  // Two times of different days compare only roughly; the good ones are taken again, side by side.
  bool good = o.kind == OutcomeKind::measured && o.microseconds <= best_stored_ * kStoredHopeless;
  if (good) return false;
  entry.outcome = o;
  return true;
}

void Search::prepare_device() {
  progress("prepare", 0, 1);
  BinaryPtr oracle, clock;
  if (task_.oracle) oracle = context_.builder.build(task_.oracle(), device_.arch(), &device_).binary;
  if (!device_.arch().cpu) try {
      clock = context_.builder.build(clock_source(), device_.arch(), &device_).binary;
    } catch (const Error& e) {
      context_.log(LogLevel::warning, fmt::format("the SM clock is not watched: {}", e.what()));
    }
  verifier_.emplace(task_, device_, oracle);
  bench_.emplace(task_, device_, policy_.cold_bytes, clock.get());
  progress("prepare", 1, 1);
}

bool Search::stop(int tried) {
  if (cancelled())
    report_.stopped = "cancelled";
  else if (policy_.exhaustive || tried == 0)
    return false;
  // At least the default is measured, however small the budget; none that would not be through in time.
  else if (incumbent_ >= 0 && seconds() + latest_ > share(rules_.search_share))
    report_.stopped = "budget";
  else if (policy_.patience > 0 && since_improvement_ >= policy_.patience)
    report_.stopped = "patience";
  return !report_.stopped.empty();
}

Built Search::wait(std::future<Built>& future) {
  while (future.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready)
    if (cancelled()) throw Error(ErrorCode::would_tune, "tune", "", "was cancelled");
  return future.get();
}

// A last resort is measured though it spills.
void Search::consider(const Candidate& candidate, std::future<Built>& build, bool last_resort) {
  Entry e;
  e.outcome.candidate = candidate;
  if (!last_resort && settled_by_history(candidate, e)) {
    entries_.push_back(std::move(e));
    return;
  }
  try {
    Built built = wait(build);
    if (built.compiled) ++report_.compiled;
    e.binary = built.binary;
    e.outcome.resources = e.binary->resources;
    std::string why = unacceptable(e.outcome.resources);
    if (!why.empty() && !last_resort) {
      e.outcome.kind = OutcomeKind::rejected;
      e.outcome.detail = why;
    } else {
      Verdict v = verifier_->check(e.binary);
      e.outcome.kind = v.kind;
      e.outcome.detail = v.detail;
      e.outcome.error = v.error;
      if (v.kind == OutcomeKind::measured) screen(e);
    }
  } catch (const Error& error) {
    if (cancelled()) return;  // no fate of the candidate's own
    if (error.code() == ErrorCode::library_missing || error.code() == ErrorCode::would_tune) throw;
    if (error.code() == ErrorCode::driver_failed) device_.synchronize();  // throws if the device is lost
    e.outcome.kind = error.code() == ErrorCode::compile_failed ? OutcomeKind::not_compiled : OutcomeKind::failed;
    e.outcome.detail = error.what();
    // Of a CPU whose compiler is missing: it may be there the next time.
    if (device_.arch().cpu && error.code() == ErrorCode::unsupported) {
      e.outcome.kind = OutcomeKind::not_compiled;
      entries_.push_back(std::move(e));
      return;
    }
  }
  store(e);
  entries_.push_back(std::move(e));
  if (entries_.back().screened <= 0) return;
  ++since_improvement_;
  int last = static_cast<int>(entries_.size()) - 1;
  if (incumbent_ < 0 || entries_.back().screened < entries_[incumbent_].screened) {
    if (incumbent_ < 0 || entries_.back().screened < entries_[incumbent_].screened * (1 - kImprovement))
      since_improvement_ = 0;
    incumbent_ = last;
  }
}

// A few rounds side by side with the fastest so far. What counts is the ratio of the two, so that a GPU that warms up
// or slows down between the first and the last candidate does not decide.
void Search::screen(Entry& e) {
  e.bench = bench_->add(e.binary);
  ++report_.measured;
  ++context_.measured;
  const Entry* best = incumbent_ >= 0 ? &entries_[static_cast<std::size_t>(incumbent_)] : nullptr;
  if (best && bench_->estimate(e.bench) > kHopeless * best->screened + 20) {
    e.screened = bench_->estimate(e.bench);
    e.outcome.rounds = 1;
  } else {
    if (best) bench_->forget(best->bench);
    std::vector<int> pair{e.bench};
    if (best) pair.insert(pair.begin(), best->bench);
    for (int i = 0; i < kScreenRounds; ++i) bench_->round(pair);
    e.screened = bench_->summary(e.bench).median;
    double now = best ? bench_->summary(best->bench).median : 0;
    if (best && now > 0) e.screened *= best->screened / now;
    e.outcome.rounds = kScreenRounds;
  }
  e.outcome.mhz = bench_->mhz(e.bench);
  e.outcome.microseconds = e.outcome.low = e.outcome.high = e.screened;
}

// Submits a candidate's build, unless its fate is known.
std::future<Built> Search::submit(Pool& pool, const Candidate& c, bool last_resort) {
  Entry settled;
  if (!last_resort && settled_by_history(c, settled)) return {};
  return pool.submit([this, c] {
    Source source = task_.source(c);
    if (!context_.compile) {
      BinaryPtr found = context_.builder.find(source, device_.arch(), &device_);
      if (found) return Built{found, false, 0};
      throw Error(ErrorCode::compile_failed, "candidate", c.text(), "is not in the cache, and compiling is forbidden");
    }
    return context_.builder.build(source, device_.arch(), &device_);
  });
}

std::vector<Candidate> Search::more(int tried) {
  // Candidates that spilled or were refused do not count as measured; at most as many of those again are tried.
  int measured = 0;
  for (const Entry& e : entries_) measured += e.outcome.kind == OutcomeKind::measured;
  int left = std::min(policy_.max_candidates - measured, 2 * policy_.max_candidates - tried);
  if (!request_.refine || policy_.exhaustive || left <= 0) return {};
  std::vector<Outcome> outcomes;
  for (const Entry& e : entries_) outcomes.push_back(e.outcome);
  return request_.refine(outcomes, std::min(kBatch, left));
}

void Search::walk() {
  Pool pool(context_.compile ? thread_count(policy_.jobs) : 1);
  std::vector<Candidate> batch = request_.candidates;
  int tried = 0;
  bool prepared = false;
  while (!batch.empty() && report_.stopped.empty()) {
    std::vector<std::future<Built>> builds;
    for (const Candidate& c : batch) builds.push_back(submit(pool, c));
    if (!prepared) prepare_device();  // while the first ones compile
    prepared = true;
    int total = request_.refine && !policy_.exhaustive ? policy_.max_candidates : static_cast<int>(batch.size());
    for (std::size_t i = 0; i < batch.size() && !stop(tried); ++i) {
      const double before = seconds();
      consider(batch[i], builds[i]);
      latest_ = seconds() - before;
      progress("measure", ++tried, total);
    }
    batch = more(tried);
  }
  if (report_.stopped.empty()) report_.stopped = cancelled() ? "cancelled" : "all";
}

void Search::final_rounds() {
  if (incumbent_ < 0) return;
  double limit = entries_[static_cast<std::size_t>(incumbent_)].screened * kContender;
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(entries_.size()); ++i)
    if (entries_[i].bench >= 0 && entries_[i].screened > 0 && entries_[i].screened <= limit) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return entries_[a].screened < entries_[b].screened; });
  if (order.size() > kMostContenders) order.resize(kMostContenders);
  std::sort(order.begin(), order.end());
  finalists_ = order;
  std::vector<int> bench;
  for (int i : finalists_) bench.push_back(entries_[i].bench);
  // Screening ran at another rhythm and left the chip at another clock: the first rounds do not count.
  for (int i = 0; i < rules_.warm_rounds && (i == 0 || policy_.exhaustive || seconds() < policy_.budget_seconds); ++i)
    bench_->round(bench, true);
  for (int b : bench) bench_->forget(b);
  std::vector<Summary> now;
  const double started = seconds();
  for (int round = 0; round < 2 * rules_.most_rounds && !cancelled(); ++round) {
    const bool over =
        seconds() - started > share(rules_.final_share) || (!policy_.exhaustive && seconds() > policy_.budget_seconds);
    if (over && round >= (policy_.exhaustive ? rules_.least_rounds : kScreenRounds)) break;
    bench_->round(bench, true);
    progress("compare", round + 1, rules_.most_rounds);
    now.clear();
    for (int b : bench) now.push_back(bench_->summary(b));
    if (enough(now, rules_)) break;
  }
}

void Search::decide() {
  std::vector<Summary> finals;
  for (int i : finalists_) {
    Entry& e = entries_[static_cast<std::size_t>(i)];
    Summary s = bench_->summary(e.bench);
    if (s.rounds < 2) s = {};  // one steady round says nothing about the others
    finals.push_back(s);
    if (s.median <= 0) continue;
    e.outcome.microseconds = s.median;
    e.outcome.low = s.low;
    e.outcome.high = s.high;
    e.outcome.rounds = s.rounds;
    e.outcome.mhz = bench_->mhz(e.bench);
    store(e);
  }
  int won = winner(finals, rules_);
  if (won < 0) {
    // No final was steady enough to count, as on a chip at its power limit. A verified candidate's first time is still
    // far better than the fallback; it is not stored.
    if (incumbent_ < 0) return fall_back();
    report_.noisy = true;
    report_.choice = {entries_[static_cast<std::size_t>(incumbent_)].outcome.candidate, Grade::ranked,
                      entries_[static_cast<std::size_t>(incumbent_)].screened};
    return;
  }
  const Entry& best = entries_[static_cast<std::size_t>(finalists_[static_cast<std::size_t>(won)])];
  report_.choice = {best.outcome.candidate, Grade::exact, best.outcome.microseconds};
  const bool cpu = device_.arch().cpu != nullptr;
  const double noise = finals[static_cast<std::size_t>(won)].noise;
  report_.noisy = noise > rules_.noisy || bench_->unsteady();
  if (report_.noisy)
    context_.log(LogLevel::warning,
                 fmt::format("{}: timings vary by {:.1f} %, so the choice is used but not stored; is the {}?",
                             task_.key, 100 * noise, cpu ? "CPU busy" : "GPU shared"));
  if (report_.noisy || report_.stopped == "cancelled") return;
  StoredChoice row;
  row.problem = task_.key;
  row.candidate = best.outcome.candidate;
  row.microseconds = best.outcome.microseconds;
  row.first = report_.first.text();
  for (const Entry& e : entries_)
    if (e.outcome.candidate == report_.first) row.first_microseconds = e.outcome.microseconds;
  row.environment = environment();
  context_.store.put_choice(choice_key_, row);
}

// No candidate that was tried can be used. The fallback is taken if it is right; it is not stored.
void Search::fall_back() {
  const auto fate = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const Entry& e) { return e.outcome.candidate == request_.fallback; });
  if (fate == entries_.end() || fate->outcome.kind == OutcomeKind::rejected) {
    if (fate != entries_.end()) entries_.erase(fate);
    Pool pool(1);
    std::future<Built> build = submit(pool, request_.fallback, true);
    consider(request_.fallback, build, true);
  }
  if (incumbent_ >= 0) {
    report_.choice = {request_.fallback, Grade::ranked, entries_[static_cast<std::size_t>(incumbent_)].screened};
    return;
  }
  if (cancelled()) {
    report_.stopped = "cancelled";
    report_.choice = {request_.fallback, Grade::ranked, 0};
    return;
  }
  std::vector<Outcome> outcomes;
  for (const Entry& e : entries_) outcomes.push_back(e.outcome);
  throw_none_right("candidates", task_.key, outcomes);
}

void Search::store(Entry& e) {
  context_.store.put_outcome(outcome_key_, task_.key, e.outcome, environment());
  if (e.outcome.kind != OutcomeKind::measured)
    context_.log(LogLevel::info, fmt::format("{}: {} {}: {}", task_.key, e.outcome.candidate.text(),
                                             to_string(e.outcome.kind), e.outcome.detail));
}

TuneReport Search::run() {
  report_.key = task_.key;
  report_.first = request_.candidates.front();
  load_history();
  if (!answered_by_history()) {
    walk();
    if (report_.stopped != "cancelled") final_rounds();
    // A search that was cancelled has no final: what it knows are the screened times.
    if (report_.stopped != "cancelled")
      decide();
    else if (incumbent_ >= 0)
      report_.choice = {entries_[incumbent_].outcome.candidate, Grade::ranked, entries_[incumbent_].screened};
    else
      report_.choice = {request_.fallback, Grade::ranked, 0};
    for (Entry& e : entries_) report_.outcomes.push_back(std::move(e.outcome));
  }
  report_.seconds = seconds();
  return std::move(report_);
}

}  // namespace

TuneReport search(SearchContext& context, const Task& task, const Device& device, const SearchRequest& request) {
  return Search(context, task, device, request).run();
}

}  // namespace tilewright::tuner
