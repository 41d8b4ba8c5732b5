// SPDX-License-Identifier: Apache-2.0
// tune: measure candidates on this machine's GPU, or its CPU, and remember the best.
#include <fmt/format.h>

#include <algorithm>

#include "cli/advice.h"
#include "cli/command.h"

namespace tilewright::cli {
namespace {

constexpr double kAllRowsBudget = 60;  // seconds

struct TuneArgs {
  ProblemArgument problem;
  std::vector<std::string> workloads;
  bool packed = false;
  std::string device;
  TunePolicy policy;
};

Json json_of(const Outcome& o) {
  return {{"candidate", o.candidate.text()},
          {"kind", to_string(o.kind)},
          {"detail", o.detail},
          {"microseconds", o.microseconds},
          {"low", o.low},
          {"high", o.high},
          {"rounds", o.rounds},
          {"error", o.error},
          {"mhz", o.mhz},
          {"registers", o.resources.registers},
          {"spill_bytes", o.resources.spill_bytes},
          {"stored", o.stored}};
}

Json json_of(const TuneReport& r) {
  Json outcomes = Json::array();
  for (const Outcome& o : r.outcomes) outcomes.push_back(json_of(o));
  return {{"problem", r.key},
          {"choice", r.choice.candidate.text()},
          {"grade", to_string(r.choice.grade)},
          {"microseconds", r.choice.microseconds},
          {"first", r.first.text()},
          {"compiled", r.compiled},
          {"measured", r.measured},
          {"seconds", r.seconds},
          {"noisy", r.noisy},
          {"stopped", r.stopped},
          {"outcomes", outcomes}};
}

// What serves which numbers of rows.
void show_ranges(const TuneReport& r) {
  Table table({"rows", "expected at the last", "candidate"});
  std::size_t estimated = 0;
  for (const RowRange& range : r.ranges) {
    estimated += !range.measured;
    table.add(
        {rows_text(range), (range.measured ? "" : "~ ") + microseconds(range.microseconds), range.candidate.text()});
  }
  print(r.key);
  print(table.text());
  if (estimated)
    print(fmt::format("~: {} of {} ranges are estimated, not measured; --retune with a larger --budget measures more",
                      estimated, r.ranges.size()));
  print(fmt::format("{} compiled, {} times measured in {:.1f} s, stopped by {}{}\n", r.compiled, r.measured, r.seconds,
                    r.stopped, r.noisy ? "; too noisy to store" : ""));
}

void show(const TuneReport& r) {
  Table table({"candidate", "outcome", "time", "spread", "error/bound"});
  for (const Outcome& o : r.outcomes) {
    const bool measured = o.kind == OutcomeKind::measured;
    table.add({o.candidate.text(), measured ? (o.stored ? "measured before" : "measured") : to_string(o.kind),
               microseconds(o.microseconds), measured ? fmt::format("{:.2f}-{:.2f}", o.low, o.high) : o.detail,
               measured ? fmt::format("{:.2g}", o.error) : "-"});
  }
  print(r.key);
  print(table.text());
  std::string rate;
  const Problem measured = Problem::parse(r.key);  // the one that stands for its bucket
  if (r.choice.microseconds > 0)
    rate = fmt::format(", {:.2f} TB/s, {:.2f} TFLOP/s", measured.min_bytes() / r.choice.microseconds / 1e6,
                       measured.ops() / r.choice.microseconds / 1e6);
  print(fmt::format("choice: {} ({}{})\n{} compiled, {} measured in {:.1f} s, stopped by {}{}\n",
                    r.choice.candidate.text(), microseconds(r.choice.microseconds), rate, r.compiled, r.measured,
                    r.seconds, r.stopped, r.noisy ? "; too noisy to store" : ""));
}

int run_tune(const Context& context, TuneArgs args) {
  std::vector<Problem> problems = all_problems(args.problem, args.workloads);
  Options options = context.options();
  const Device device = device_or_cpu(args.device, options, "tune");
  tell_of_cpu(args.device, device);
  Engine engine(std::move(options));
  Json reports = Json::array();
  for (Problem& problem : problems) {
    problem = engine.packed_for(problem, device.arch());
    problem = args.packed ? engine.packed(problem, device.arch()) : as_computed(problem, device.arch());
    TuneReport report;
    {
      const Progress progress;
      args.policy.progress = progress;
      report = engine.tune(problem, device, args.policy);
      args.policy.progress = nullptr;
    }
    const double predicted = engine.plan(problem, device.arch()).front().predicted_microseconds;
    const auto advice = advise(engine, problem, device.arch(), predicted);
    const std::string warning = only_reference(problem, device.arch());
    if (context.json) {
      reports.push_back(json_of(report));
      for (const RowRange& range : report.ranges) reports.back()["ranges"].push_back(json(range));
      reports.back()["warning"] = warning.empty() ? Json() : Json(warning);
      reports.back()["advice"] = advice ? json(*advice) : Json();
    } else {
      if (report.ranges.empty())
        show(report);
      else
        show_ranges(report);
      if (advice) print(text(*advice) + "\n");
    }
    if (!warning.empty()) tell("warning: " + warning);
  }
  if (context.json) print_json(Json{{"device", device.name()}, {"arch", device.arch().name}, {"reports", reports}});
  return kOk;
}

}  // namespace

void add_tune(Context& context) {
  const auto args = std::make_shared<TuneArgs>();
  CLI::App* command = add_command(context, *context.app, "tune",
                                  "Measure candidates on the GPU, or without one on the CPU, and keep the best");
  add_problem(command, args->problem, false);
  add_workload(command, args->workloads);
  command->add_flag("--packed", args->packed, "Weights in the order that this device's kernels want; on a CPU always");
  add_device(command, args->device);
  command->add_flag("--all-m", args->policy.all_rows,
                    "Choose for every number of rows (a gemm's m) at once, whatever the problem's own");
  command->add_option("--binaries", args->policy.max_binaries, "With --all-m: binaries to measure, at most")
      ->check(CLI::Range(1, 256));
  command->add_option("--max", args->policy.max_candidates, "Candidates to measure, at most")
      ->check(CLI::Range(1, 100000));
  command->add_option("--budget", args->policy.budget_seconds, "Seconds per problem (30; with --all-m 60)")
      ->check(at_least(0.001));
  command
      ->add_option("--patience", args->policy.patience, "Stop after this many candidates without improvement; 0: never")
      ->check(at_least(0));
  command->add_option("--jobs", args->policy.jobs, "Compiles at a time; 0: one per core")->check(CLI::Range(0, 1024));
  command->add_flag("--exhaustive", args->policy.exhaustive, "Every legal candidate, whatever it takes");
  command->add_flag("--retune", args->policy.retune, "Measure again what is stored");
  command->callback([&context, args, command] {
    if (args->policy.all_rows && command->count("--budget") == 0) args->policy.budget_seconds = kAllRowsBudget;
    context.action = [&context, args] { return run_tune(context, *args); };
  });
}

}  // namespace tilewright::cli
