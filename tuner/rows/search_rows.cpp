// SPDX-License-Identifier: Apache-2.0
#include "tuner/rows/search_rows.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <tilewright/error.h>
#include <tilewright/operation.h>

#include "tuner/build/pool.h"
#include "tuner/choose/history.h"
#include "tuner/measure/clock.h"
#include "tuner/measure/launch.h"
#include "tuner/measure/measure.h"
#include "tuner/measure/statistics.h"
#include "tuner/measure/verify.h"
#include "tuner/rows/row_space.h"
#include "tuner/task.h"

namespace tilewright::tuner {
namespace {

using Clock = std::chrono::steady_clock;

// Points whose results are verified together.
constexpr std::array<std::int64_t, 3> kRangeRows{64, 1024, kMostStepRows};  // the most rows of each
// Of the budget, until no further candidate is tried, and until what serves by its estimate is no more confirmed.
constexpr double kSearchShare = 0.65, kConfirmShare = 0.85;
constexpr double kPointShare = 0.2;                // a time that takes longer is not worth so much of the budget
constexpr double kCpuSample = 2000;                // microseconds; as in Bench
constexpr double kGpuSample = 2000;                // with its rest
constexpr int kListed = 48;                        // candidates of each point's list that are considered
constexpr int kFirstBinaries = 12;                 // asked for at once, before anything is known
constexpr int kBatch = 4;                          // and then, to learn from each
constexpr int kFirstPoints = 3, kMostPoints = 14;  // of a binary: measured before its estimates count, and in all
constexpr int kConfirmRounds = 5;
constexpr int kScreenRounds = 2, kFinalRounds = 5;
constexpr double kLeastTime = 1e-3;  // microseconds: a driver double's launches take none
constexpr double kContender = 1.04;  // a time within this of the best at its point is taken again beside it
constexpr std::size_t kMostContenders = 3;

class RowSearch {
 public:
  RowSearch(SearchContext& context, const Problem& problem, const Device& device, const TunePolicy& policy,
            const std::string& templates)
      : context_(context),
        problem_(problem),
        device_(device),
        policy_(policy),
        templates_(templates),
        outcome_key_(outcome_key(device, context.builder.compiler(device.arch()))),
        space_(problem, device.arch(), model_of(device), tuning_rows(), kListed) {}

  TuneReport run(RowTable& table);

 private:
  // What verifying results at some of the points needs.
  struct Range {
    Task task;
    std::optional<Verifier> verifier;
    double seconds = 0;  // that the latest candidate took
  };

  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }
  bool cancelled() const { return policy_.cancelled && policy_.cancelled(); }
  // Whether so many seconds more are within a share of the budget. The first time is taken however small that is.
  bool within(double share, double more = 0) const {
    return report_.measured == 0 || seconds() + more <= share * policy_.budget_seconds;
  }
  bool short_of_time(double share, double more) {
    const bool is = !within(share, more);
    hurried_ |= is;
    return is;
  }
  bool stop() {
    if (cancelled())
      report_.stopped = "cancelled";
    else if (!within(kSearchShare))
      report_.stopped = "budget";
    return !report_.stopped.empty();
  }
  void progress(std::string_view stage, int done, int total) const {
    if (policy_.progress) policy_.progress(stage, done, total);
  }
  static int range_of(std::int64_t rows) { return rows <= kRangeRows[0] ? 0 : rows <= kRangeRows[1] ? 1 : 2; }
  Problem at(int point) const { return problem_.with_rows(space_.points()[static_cast<std::size_t>(point)]); }
  int point_count() const { return static_cast<int>(space_.points().size()); }
  std::int64_t rows_at(int point) const { return space_.points()[static_cast<std::size_t>(point)]; }
  double round_seconds(double microseconds) const;  // of a launch that takes so long: of one sample
  double time_seconds(int index, int point) const;  // expected of time()
  void reach();                                     // leaves out the points that the budget or memory has no room for
  std::vector<int> coarse_first() const;            // the points that can be measured
  Range& range(int index);
  Built build(const RowContender& contender);
  void consider(int index, std::future<Built>& future);
  // Runs `body`; an error that one candidate can cause fails that candidate.
  void attempt(int index, const std::function<void()>& body);
  // Verifies a binary before its first time in a range; false if it is wrong, or if there is no time for this.
  bool time(int index, int point, double share);
  void confirm();
  void finals();
  bool failed(int index) const { return space_.contenders()[static_cast<std::size_t>(index)].failed; }
  // lasts: whether another process will find the same.
  void fail(int index, OutcomeKind kind, const std::string& why, bool lasts = true);
  Outcome outcome(int index, int point, double microseconds) const;
  void store(int index, int point, const Summary& summary);
  RowTable decided();  // by what is known so far
  void choose(RowTable& table);

  SearchContext& context_;
  const Problem& problem_;
  const Device device_;
  const TunePolicy& policy_;
  const std::string& templates_;
  const Key outcome_key_;
  const Clock::time_point began_ = Clock::now();
  RowSpace space_;
  BinaryPtr oracle_, clock_;
  Task task_;  // of the most rows that are measured
  std::optional<Bench> bench_;
  std::map<int, Range> ranges_;
  std::map<std::pair<int, int>, int> timed_;  // index in the bench, by contender and point
  std::set<std::pair<int, int>> verified_;    // contender and range
  std::map<int, BinaryPtr> binaries_;         // of contenders that may be used
  bool hurried_ = false;                      // something was not measured for want of time
  TuneReport report_;
};

double RowSearch::round_seconds(double microseconds) const {
  return std::max(microseconds, device_.arch().cpu ? kCpuSample : kGpuSample) * 1e-6;
}

double RowSearch::time_seconds(int index, int point) const {
  const double us = space_.estimate(index, point);
  return 2e-6 * us + kScreenRounds * round_seconds(us);
}

void RowSearch::reach() {
  const double room = (device_.arch().cpu ? 0.25 : 0.8) * static_cast<double>(jit::free_memory(device_));
  int points = 0;
  for (; points < point_count(); ++points) {
    double least = std::numeric_limits<double>::infinity(), bytes = 0;
    for (const RowContender& c : space_.contenders())
      least = std::min(least, c.predicted[static_cast<std::size_t>(points)]);
    if (points > 0 && (2 + kScreenRounds) * 1e-6 * least > kPointShare * policy_.budget_seconds) {
      hurried_ = true;
      break;
    }
    const Task task = make_task(at(points), device_.arch(), {}, templates_);
    for (const Buffer& b : task.buffers) bytes += static_cast<double>(bytes_at(b, task.rows));
    if (points > 0 && bytes > room) break;
    task_ = task;
  }
  space_.measure_first(points);
}

// So that a search that ends early knows a little everywhere.
std::vector<int> RowSearch::coarse_first() const {
  std::vector<int> order;
  std::vector<bool> taken(static_cast<std::size_t>(space_.measurable()));
  for (int step = 16; step >= 1; step /= 2)
    for (int p = space_.measurable() - 1; p >= 0; p -= step)
      if (!taken[static_cast<std::size_t>(p)]) taken[static_cast<std::size_t>(p)] = true, order.push_back(p);
  return order;
}

RowSearch::Range& RowSearch::range(int index) {
  if (const auto found = ranges_.find(index); found != ranges_.end()) return found->second;
  Range& r = ranges_[index];
  const std::int64_t rows = std::min(kRangeRows[static_cast<std::size_t>(index)], task_.rows);
  r.task = make_task(problem_.with_rows(rows), device_.arch(), {}, templates_);
  if (!oracle_ && r.task.oracle) oracle_ = context_.builder.build(r.task.oracle(), device_.arch(), &device_).binary;
  r.verifier.emplace(r.task, device_, oracle_);
  return r;
}

Built RowSearch::build(const RowContender& c) {
  const Source source = source_of(problem_.with_rows(c.listed), device_.arch(), c.ranked.candidate, templates_);
  if (context_.compile) return context_.builder.build(source, device_.arch(), &device_);
  if (BinaryPtr found = context_.builder.find(source, device_.arch(), &device_)) return {found, false, 0};
  throw Error(ErrorCode::compile_failed, "candidate", c.ranked.candidate.text(),
              "is not in the cache, and compiling is forbidden");
}

void RowSearch::fail(int index, OutcomeKind kind, const std::string& why, bool lasts) {
  RowContender& c = space_.contenders()[static_cast<std::size_t>(index)];
  c.failed = true;
  c.measured.assign(c.measured.size(), 0);
  Outcome o;
  o.candidate = c.ranked.candidate, o.kind = kind, o.detail = why, o.rows = c.listed;
  if (const auto b = binaries_.find(index); b != binaries_.end()) o.resources = b->second->resources;
  binaries_.erase(index);
  const Problem listed = problem_.with_rows(c.listed);
  if (lasts) context_.store.put_outcome(outcome_key_, listed.text(), o, outcome_key_.transcript());
  context_.log(LogLevel::info, fmt::format("{}: {} {}: {}", listed.text(), o.candidate.text(), to_string(kind), why));
  report_.outcomes.push_back(std::move(o));
}

bool RowSearch::time(int index, int point, double share) {
  const int in = range_of(rows_at(point));
  if (!verified_.contains({index, in})) {
    // A range that was not verified yet is taken to cost what the one before it did.
    const auto known = ranges_.lower_bound(in);
    const double check = known != ranges_.end() ? known->second.seconds
                         : ranges_.empty()      ? 0
                                                : ranges_.rbegin()->second.seconds;
    if (short_of_time(share, check + time_seconds(index, point))) return false;
    const double before = seconds();
    Range& r = range(in);
    verified_.emplace(index, in);
    const Verdict v = r.verifier->check(binaries_.at(index));
    r.seconds = seconds() - before;
    if (v.kind != OutcomeKind::measured) {
      fail(index, v.kind, v.detail);
      return false;
    }
  }
  if (short_of_time(share, time_seconds(index, point))) return false;
  if (!bench_) bench_.emplace(task_, device_, policy_.cold_bytes, clock_.get(), 1);
  const int timed = bench_->add(binaries_.at(index), rows_at(point));
  timed_[{index, point}] = timed;
  const int one[] = {timed};
  for (int i = 0; i < kScreenRounds; ++i) bench_->round(one);
  ++report_.measured, ++context_.measured;
  space_.record(index, point, std::max(kLeastTime, bench_->summary(timed).median));
  return true;
}

void RowSearch::attempt(int index, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    if (cancelled()) return;
    if (error.code() == ErrorCode::library_missing || error.code() == ErrorCode::would_tune) throw;
    if (error.code() == ErrorCode::driver_failed) device_.synchronize();  // throws if the device is lost
    // Of a CPU: its compiler is missing, and may be there the next time.
    const bool lacks = device_.arch().cpu && error.code() == ErrorCode::unsupported;
    const bool failed = error.code() != ErrorCode::compile_failed && !lacks;
    fail(index, failed ? OutcomeKind::failed : OutcomeKind::not_compiled, error.what(), !lacks);
  }
}

void RowSearch::consider(int index, std::future<Built>& future) {
  space_.contenders()[static_cast<std::size_t>(index)].tried = true;
  attempt(index, [&] {
    while (future.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready)
      if (stop()) return;
    const Built built = future.get();
    report_.compiled += built.compiled;
    binaries_[index] = built.binary;
    if (const std::string why = unacceptable(built.binary->resources); !why.empty())
      return fail(index, OutcomeKind::rejected, why);
    for (int most : {kFirstPoints, kMostPoints})
      for (const int point : space_.worth_measuring(index, most))
        if (stop() || (!time(index, point, kSearchShare) && failed(index))) return;
  });
}

RowTable RowSearch::decided() {
  RowTable table;
  for (const RowContender& c : space_.contenders()) {
    RowCandidate row{c.ranked.candidate, c.listed, {}};
    for (std::size_t p = 0; p < c.measured.size(); ++p)
      if (c.measured[p] > 0 && !c.failed) row.times[space_.points()[p]] = c.measured[p];
    if (!row.times.empty()) table.candidates.push_back(std::move(row));
  }
  if (table.candidates.empty()) return table;
  RowModel model(problem_, device_.arch(), model_of(device_));
  decide(table, model);
  return table;
}

// What would serve a point is measured there, until nothing serves one by its estimate alone or the time is up.
void RowSearch::confirm() {
  const std::vector<int> order = coarse_first();
  for (int round = 0; round < kConfirmRounds; ++round) {
    const RowTable table = decided();
    if (table.candidates.empty()) return;
    int measured = 0, done = 0;
    for (const int p : order) {
      const Candidate& serves = table.candidates[table.steps[static_cast<std::size_t>(row_step(rows_at(p)))]].candidate;
      for (std::size_t i = 0; i < space_.contenders().size(); ++i) {
        const RowContender& c = space_.contenders()[i];
        if (c.failed || c.measured[static_cast<std::size_t>(p)] > 0 || !binaries_.contains(static_cast<int>(i)) ||
            c.ranked.candidate != serves)
          continue;
        if (cancelled()) return;
        attempt(static_cast<int>(i), [&] { measured += time(static_cast<int>(i), p, kConfirmShare); });
      }
      progress("confirm", ++done, static_cast<int>(order.size()));
    }
    if (measured == 0) return;
  }
}

// Times of one moment, side by side, of those that are near the best at a point.
void RowSearch::finals() {
  int done = 0;
  for (const int p : coarse_first()) {
    if (cancelled()) return;
    progress("compare", ++done, space_.measurable());
    std::vector<std::pair<double, int>> near;
    for (std::size_t i = 0; i < space_.contenders().size(); ++i) {
      const RowContender& c = space_.contenders()[i];
      if (const double us = c.measured[static_cast<std::size_t>(p)]; us > 0) near.emplace_back(us, static_cast<int>(i));
    }
    if (near.empty()) continue;
    std::sort(near.begin(), near.end());
    std::size_t contenders = 0;
    while (contenders < std::min(near.size(), kMostContenders) && near[contenders].first <= kContender * near[0].first)
      ++contenders;
    for (std::size_t i = contenders; i < near.size(); ++i)
      report_.outcomes.push_back(outcome(near[i].second, p, near[i].first));
    near.resize(contenders);
    std::vector<int> timed;
    double round = 0;
    for (const auto& [us, index] : near) timed.push_back(timed_.at({index, p})), round += round_seconds(us);
    const int rounds = near.size() > 1 ? kFinalRounds : kScreenRounds;
    if (within(1, rounds * round)) {
      for (int t : timed) bench_->forget(t);
      for (int i = 0; i < rounds; ++i) bench_->round(timed, true);
    }
    for (std::size_t i = 0; i < near.size(); ++i) {
      const Summary s = bench_->summary(timed[i]);
      if (s.median <= 0) continue;
      space_.contenders()[static_cast<std::size_t>(near[i].second)].measured[static_cast<std::size_t>(p)] = s.median;
      store(near[i].second, p, s);
    }
  }
  report_.noisy = bench_ && bench_->unsteady();
}

Outcome RowSearch::outcome(int index, int point, double microseconds) const {
  Outcome o;
  o.candidate = space_.contenders()[static_cast<std::size_t>(index)].ranked.candidate, o.kind = OutcomeKind::measured;
  o.rows = space_.points()[static_cast<std::size_t>(point)];
  o.microseconds = microseconds;
  o.resources = binaries_.at(index)->resources;
  return o;
}

void RowSearch::store(int index, int point, const Summary& s) {
  Outcome o = outcome(index, point, s.median);
  o.low = s.low, o.high = s.high, o.rounds = s.rounds;
  context_.store.put_outcome(outcome_key_, at(point).text(), o, outcome_key_.transcript());
  report_.outcomes.push_back(std::move(o));
}

// The table, and a choice for each bucket.
void RowSearch::choose(RowTable& table) {
  table = decided();
  if (table.candidates.empty()) return;
  RowModel model(problem_, device_.arch(), model_of(device_));
  report_.ranges = ranges_of(table, model);
  const auto serves = [&](std::int64_t rows) -> const RowCandidate& {
    return table.candidates[table.steps[static_cast<std::size_t>(row_step(rows))]];
  };
  const RowCandidate& own = serves(problem_.rows());
  report_.choice = {own.candidate, Grade::exact, model.estimate(own, problem_.rows())};
  if (report_.noisy || report_.stopped == "cancelled") return;
  for (const std::int64_t rows : kBuckets) {
    const RowCandidate& c = serves(rows);
    const auto time = c.times.find(rows);
    if (time == c.times.end()) continue;
    StoredChoice row;
    row.problem = problem_.with_rows(rows).text();
    row.candidate = c.candidate, row.microseconds = time->second;
    row.environment = outcome_key_.transcript();
    context_.store.put_choice(choice_key(device_), row);
  }
}

TuneReport RowSearch::run(RowTable& table) {
  report_.key = problem_.text();
  reach();
  if (!device_.arch().cpu) try {
      clock_ = context_.builder.build(clock_source(), device_.arch(), &device_).binary;
    } catch (const Error& e) {
      context_.log(LogLevel::warning, fmt::format("the SM clock is not watched: {}", e.what()));
    }
  {
    Pool pool(context_.compile ? thread_count(policy_.jobs) : 1);
    int tried = 0;
    while (!stop()) {
      const std::vector<int> batch =
          space_.next(std::min(tried ? kBatch : kFirstBinaries, policy_.max_binaries - tried));
      if (batch.empty()) break;
      if (!tried) report_.first = space_.contenders()[static_cast<std::size_t>(batch.front())].ranked.candidate;
      std::vector<std::future<Built>> builds;
      for (const int i : batch)
        builds.push_back(pool.submit([this, i] { return build(space_.contenders()[static_cast<std::size_t>(i)]); }));
      for (std::size_t i = 0; i < batch.size() && !stop(); ++i) {
        consider(batch[i], builds[i]);
        progress("measure", ++tried, policy_.max_binaries);
      }
    }
  }
  confirm();
  if (cancelled()) report_.stopped = "cancelled";
  if (report_.stopped != "cancelled") finals();
  choose(table);
  if (report_.stopped.empty()) report_.stopped = hurried_ ? "budget" : "all";
  if (table.candidates.empty() && report_.stopped != "cancelled")
    throw_none_right("problem", problem_.text(), report_.outcomes);
  report_.seconds = seconds();
  return std::move(report_);
}

}  // namespace

TuneReport search_rows(SearchContext& context, const Problem& problem, const Device& device, const TunePolicy& policy,
                       const std::string& templates, RowTable& table) {
  return RowSearch(context, problem, device, policy, templates).run(table);
}

}  // namespace tilewright::tuner
