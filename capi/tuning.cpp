// SPDX-License-Identifier: Apache-2.0
// Tuning, prewarming and their reports.
#include <fmt/format.h>

#include <cstdlib>
#include <new>
#include <span>

#include "capi/handles.h"

tw_tune_report::tw_tune_report(tilewright::TuneReport r)
    : Handle(kKind), value(std::move(r)), candidate(value.choice.candidate.text()), first(value.first.text()) {
  for (const tilewright::Outcome& o : value.outcomes) outcomes.push_back(o.candidate.text());
  for (const tilewright::RowRange& range : value.ranges) ranges.push_back(range.candidate.text());
}

namespace tilewright::capi {
namespace {

std::function<void(std::string_view, int, int)> progress_of(void (*progress)(void*, const char*, int32_t, int32_t),
                                                            void* user) {
  if (progress == nullptr) return {};
  return [progress, user](std::string_view stage, int done, int total) {
    progress(user, std::string(stage).c_str(), done, total);
  };
}

std::function<bool()> cancelled_of(int32_t (*cancelled)(void*), void* user) {
  if (cancelled == nullptr) return {};
  return [cancelled, user] { return cancelled(user) != 0; };
}

int least(std::int32_t value, std::int32_t least, const char* name) {
  if (value < least) refuse(name, std::to_string(value), fmt::format("must be at least {}", least));
  return value;
}

bool flag(std::int32_t value, const char* name) {
  check_flag(value, name);
  return value != 0;
}

}  // namespace

TunePolicy policy_of(const tw_tune_policy* given) {
  const tw_tune_policy initial = TW_TUNE_POLICY_INIT;
  const tw_tune_policy p = read_struct(given ? given : &initial, "policy");
  TunePolicy policy;
  policy.max_candidates = least(p.max_candidates, 1, "max_candidates");
  if (!(p.budget_seconds >= 0)) refuse("budget_seconds", fmt::format("{}", p.budget_seconds), "must be 0 or more");
  policy.budget_seconds = p.budget_seconds;
  policy.patience = least(p.patience, 0, "patience");
  policy.exhaustive = flag(p.exhaustive, "exhaustive");
  policy.retune = flag(p.retune, "retune");
  policy.all_rows = flag(p.all_rows, "all_rows");
  policy.max_binaries = least(p.max_binaries, 1, "max_binaries");
  policy.jobs = least(p.jobs, 0, "jobs");
  if (!(p.cold_bytes >= 0)) refuse("cold_bytes", fmt::format("{}", p.cold_bytes), "must be 0 or more");
  policy.cold_bytes = p.cold_bytes;
  policy.progress = progress_of(p.progress, p.user);
  policy.cancelled = cancelled_of(p.cancelled, p.user);
  return policy;
}

PrewarmPolicy policy_of(const tw_prewarm_policy* given) {
  const tw_prewarm_policy initial = TW_PREWARM_POLICY_INIT;
  const tw_prewarm_policy p = read_struct(given ? given : &initial, "policy");
  PrewarmPolicy policy;
  policy.top = least(p.top, 1, "top");
  policy.jobs = least(p.jobs, 0, "jobs");
  policy.every_bucket = flag(p.every_bucket, "every_bucket");
  policy.reference = flag(p.reference, "reference");
  policy.worker = word(p.worker);
  policy.progress = progress_of(p.progress, p.user);
  policy.cancelled = cancelled_of(p.cancelled, p.user);
  return policy;
}

std::vector<const Arch*> archs_of(const char* const* names, std::size_t count) {
  std::vector<const Arch*> found;
  for (std::size_t i = 0; i < count; ++i) found.push_back(&arch(text((&required(names, "archs"))[i], "archs")));
  if (found.empty()) refuse("archs", "", "must have at least one");
  return found;
}

}  // namespace tilewright::capi

using namespace tilewright;
using namespace tilewright::capi;

extern "C" {

tw_status tw_tune(tw_engine* engine, const tw_problem* problem, const tw_device* device, const tw_tune_policy* policy,
                  tw_tune_report** report, tw_error** error) {
  return guarded(error, [&] {
    required(report, "report");
    const TunePolicy p = policy_of(policy);
    create(report, "report", handle(engine).value.tune(handle(problem).value, handle(device).value, p));
  });
}

tw_status tw_tune_report_summary(const tw_tune_report* report, tw_tune_summary* summary, tw_error** error) {
  return guarded(error, [&] {
    const TuneReport& r = handle(report, "report").value;
    tw_tune_summary s = TW_TUNE_SUMMARY_INIT;
    s.outcomes = static_cast<int32_t>(r.outcomes.size());
    s.ranges = static_cast<int32_t>(r.ranges.size());
    s.compiled = r.compiled;
    s.measured = r.measured;
    s.noisy = r.noisy;
    s.seconds = r.seconds;
    s.microseconds = r.choice.microseconds;
    s.candidate = report->candidate.c_str();
    s.first = report->first.c_str();
    s.grade = to_string(r.choice.grade);
    s.stopped = r.stopped.c_str();
    s.key = r.key.c_str();
    write_struct(summary, s, "summary");
  });
}

tw_status tw_tune_report_outcome(const tw_tune_report* report, int32_t index, tw_outcome* outcome, tw_error** error) {
  return guarded(error, [&] {
    const std::vector<Outcome>& all = handle(report, "report").value.outcomes;
    const std::size_t i = index_of(index, all.size(), "index");
    const Outcome& o = all[i];
    write_struct(outcome,
                 {0, o.rounds, o.stored, o.imported, o.rows, o.microseconds, o.low, o.high, o.error, o.mhz,
                  report->outcomes[i].c_str(), to_string(o.kind), o.detail.c_str()},
                 "outcome");
  });
}

tw_status tw_tune_report_range(const tw_tune_report* report, int32_t index, tw_row_range* range, tw_error** error) {
  return guarded(error, [&] {
    const std::vector<RowRange>& all = handle(report, "report").value.ranges;
    const std::size_t i = index_of(index, all.size(), "index");
    write_struct(range, {0, all[i].measured, all[i].first, all[i].last, all[i].microseconds, report->ranges[i].c_str()},
                 "range");
  });
}

void tw_tune_report_release(tw_tune_report* report) { release(report); }

tw_status tw_prewarm(tw_engine* engine, const tw_problem* const* problems, size_t problem_count,
                     const char* const* archs, size_t arch_count, const tw_prewarm_policy* policy,
                     tw_prewarm_report** report, tw_error** error) {
  return guarded(error, [&] {
    required(report, "report");
    std::vector<Problem> all;
    for (size_t i = 0; i < problem_count; ++i)
      all.push_back(handle((&required(problems, "problems"))[i], "problems").value);
    const PrewarmPolicy p = policy_of(policy);
    const std::vector<const Arch*> targets = archs_of(archs, arch_count);
    create(report, "report", handle(engine).value.prewarm(all, targets, p));
  });
}

tw_status tw_prewarm_report_summary(const tw_prewarm_report* report, tw_prewarm_summary* summary, tw_error** error) {
  return guarded(error, [&] {
    const PrewarmReport& r = handle(report, "report").value;
    write_struct(summary, {0, r.compiled, r.skipped, r.failed, r.evicted, r.seconds, r.cancelled}, "summary");
  });
}

const char* tw_prewarm_report_failure(const tw_prewarm_report* report, int32_t index) {
  if (!is_handle(report) || index < 0 || static_cast<size_t>(index) >= report->value.failures.size()) return nullptr;
  return report->value.failures[static_cast<size_t>(index)].c_str();
}

void tw_prewarm_report_release(tw_prewarm_report* report) { release(report); }

tw_status tw_read_workload(const char* path, tw_problem*** problems, size_t* count, tw_error** error) {
  return guarded(error, [&] {
    required(problems, "problems");
    required(count, "count");
    std::vector<std::unique_ptr<tw_problem>> read;
    for (Problem& p : read_workload(text(path, "path"))) read.push_back(std::make_unique<tw_problem>(std::move(p)));
    auto* list = static_cast<tw_problem**>(std::malloc(std::max<size_t>(read.size(), 1) * sizeof(tw_problem*)));
    if (list == nullptr) throw std::bad_alloc();
    for (size_t i = 0; i < read.size(); ++i) list[i] = read[i].release();
    *problems = list;
    *count = read.size();
  });
}

int32_t tw_compile_worker_main(int32_t in_fd, int32_t out_fd) {
  int32_t status = 1;
  (void)guarded(nullptr, [&] { status = compile_worker_main(in_fd, out_fd); });
  return status;
}

}  // extern "C"
