// SPDX-License-Identifier: Apache-2.0
// prewarm: compile for other machines' GPUs, here.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

struct Args {
  std::vector<std::string> archs, workloads;
  PrewarmPolicy policy;
  bool threads = false;
};

// This program, which is its own compile worker.
std::string self() {
  std::string path(4096, '\0');
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size());
  return n > 0 && n < static_cast<ssize_t>(path.size()) ? path.substr(0, static_cast<std::size_t>(n)) : std::string();
}

int run_prewarm(const Context& context, Args args) {
  std::vector<Problem> problems;
  for (const std::string& path : args.workloads)
    for (Problem& p : read_workload(path)) problems.push_back(std::move(p));
  std::vector<const Arch*> targets;
  for (const std::string& name : args.archs) targets.push_back(&arch(name));
  Engine engine(context.options());
  if (!args.threads) args.policy.worker = self();
  PrewarmReport report;
  {
    const Progress progress;
    args.policy.progress = progress;
    report = engine.prewarm(problems, targets, args.policy);
    args.policy.progress = nullptr;
  }
  std::vector<double> sorted = report.compile_seconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted.empty() ? 0 : sorted[sorted.size() / 2];
  if (context.json) {
    print_json(Json{{"problems", problems.size()},
                    {"archs", args.archs},
                    {"compiled", report.compiled},
                    {"skipped", report.skipped},
                    {"failed", report.failed},
                    {"seconds", report.seconds},
                    {"compile_seconds", report.compile_seconds},
                    {"failures", report.failures}});
  } else {
    print(
        fmt::format("{} compiled, {} skipped (stored already, or the same binary as another), {} failed, in {:.2f} s{}",
                    report.compiled, report.skipped, report.failed, report.seconds,
                    sorted.empty() ? "" : fmt::format(" (median {:.2f} s per compile)", median)));
  }
  // The first line of a few: one mistake in a template fails every candidate in the same way. --json has them whole.
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < report.failures.size() && i < kShown; ++i)
    fmt::print(stderr, "tilewright: error: {}\n", report.failures[i].substr(0, report.failures[i].find('\n')));
  if (report.failures.size() > kShown)
    fmt::print(stderr, "tilewright: error: {} more failed\n", report.failures.size() - kShown);
  return report.failed ? kEnvironment : kOk;
}

}  // namespace

void add_prewarm(Context& context) {
  const auto args = std::make_shared<Args>();
  CLI::App* command = add_command(context, *context.app, "prewarm", "Compile a workload's kernels; needs no GPU");
  command->add_option("--arch", args->archs, "Targets, separated by commas")->required()->delimiter(',');
  command->add_option("--workload", args->workloads, "Files of one problem per line")->required()->type_name("FILE");
  command->add_option("--top", args->policy.top, "Candidates per problem")->check(CLI::Range(1, 10000));
  command->add_option("--jobs", args->policy.jobs, "Compiles at a time; 0: one per core")->check(CLI::Range(0, 1024));
  command->add_flag("!--no-buckets", args->policy.every_bucket, "Only the rows the workload names, not every bucket");
  command->add_flag("--threads", args->threads, "Compile in threads of this process instead of worker processes");
  command->callback([&context, args] { context.action = [&context, args] { return run_prewarm(context, *args); }; });
}

}  // namespace tilewright::cli
