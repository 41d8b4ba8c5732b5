// SPDX-License-Identifier: Apache-2.0
// prewarm: compile for other machines' GPUs, here.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <utility>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

struct PrewarmArgs {
  ProblemArgument problem;
  std::vector<std::string> archs, workloads;
  PrewarmPolicy policy;
  bool threads = false, packed = false, layers = false, named_rows = false;
};

// This program, which is its own compile worker.
std::string self() {
  std::string path(4096, '\0');
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size());
  return n > 0 && n < static_cast<ssize_t>(path.size()) ? path.substr(0, static_cast<std::size_t>(n)) : std::string();
}

void add(PrewarmReport& all, PrewarmReport one) {
  all.compiled += one.compiled;
  all.skipped += one.skipped;
  all.failed += one.failed;
  all.evicted = one.evicted;  // counts what earlier calls compiled, too
  all.seconds += one.seconds;
  all.compile_seconds.insert(all.compile_seconds.end(), one.compile_seconds.begin(), one.compile_seconds.end());
  all.failures.insert(all.failures.end(), one.failures.begin(), one.failures.end());
  all.cancelled = one.cancelled;
}

// Ctrl-C: the compiles that run are finished and kept, the others are not started. A second one ends the process.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

class Interruptible {
 public:
  Interruptible() {
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~Interruptible() { ::sigaction(SIGINT, &before_, nullptr); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  struct sigaction before_ = {};
};

// The problems to compile for a target, as an engine should ask for them there: packed ones in the target's own order,
// with --packed all that its kernels take so.
std::vector<Problem> for_target(const Engine& engine, const std::vector<Problem>& problems, const Arch& target,
                                bool packed, std::vector<std::string>& warnings) {
  std::vector<Problem> here;
  std::string first;
  int changed = 0;
  for (const Problem& p : problems) {
    here.push_back(engine.packed_for(p, target));
    if (!(here.back() == p) && changed++ == 0) first = fmt::format("{} as {}", p.text(), here.back().text());
    if (packed) here.back() = engine.packed(here.back(), target);
  }
  if (changed > 0)
    warnings.push_back(fmt::format(
        "{} takes no weights in the order of {} problem{}, which {} compiled in its own: {}{}", target.name, changed,
        changed == 1 ? "" : "s", changed == 1 ? "is" : "are", first, changed == 1 ? "" : ", for example"));
  return here;
}

// What a Layer of this problem launches on a target, whichever of its launches the problem is: x_from, pack and
// workspace are the layer's to decide.
std::vector<Problem> as_layer(const Problem& problem, const Arch& target) {
  if (problem.as<Pack>()) return {};  // each target packs in its own order, along with the problem that is packed
  LayerOptions options;
  const auto asked = [&]() -> std::optional<Problem> {
    if (const Gemm* given = problem.as<Gemm>()) {
      Gemm g = *given;
      options.x_from = std::exchange(g.x_from, std::nullopt);
      g.packing = Packing::none;
      g.workspace = 0;
      return g;
    }
    if (const Conv* given = problem.as<Conv>()) {
      Conv c = *given;
      c.packing = Packing::none;
      c.workspace = 0;
      return c;
    }
    return std::nullopt;
  }();
  if (!asked) return {problem};
  const LayerProblems found = layer_problems(*asked, target, options);
  std::vector<Problem> all{found.main.with_rows(problem.rows())};
  if (found.cast) all.push_back(found.cast->with_rows(problem.rows()));
  if (found.fused) all.push_back(*found.fused);
  return all;
}

std::vector<Problem> as_layers(const std::vector<Problem>& problems, const Arch& target) {
  std::vector<Problem> all;
  for (const Problem& p : problems)
    for (Problem& launched : as_layer(p, target))
      if (std::find(all.begin(), all.end(), launched) == all.end()) all.push_back(std::move(launched));
  return all;
}

PrewarmReport prewarm(Engine& engine, const std::vector<Problem>& problems, const std::vector<const Arch*>& targets,
                      const PrewarmArgs& args, std::vector<std::string>& warnings) {
  PrewarmPolicy policy = args.policy;
  policy.every_bucket = !args.named_rows;
  policy.cancelled = [] { return interrupted.load(); };
  if (!args.threads) policy.worker = self();
  const Interruptible interruptible;
  const Progress progress;
  PrewarmReport all;
  for (std::size_t i = 0; i < targets.size() && !all.cancelled; ++i) {
    const Arch* target = targets[i];
    // One bar for all targets. How many binaries a target takes is known once the one before it is done.
    policy.progress = [&, i](std::string_view stage, int done, int total) {
      if (stage == "plan" || total == 0) return;
      const double part =
          (static_cast<double>(i) + static_cast<double>(done) / total) / static_cast<double>(targets.size());
      progress(fmt::format("%, {} for {}: {} of {}", stage, target->name, done, total),
               std::min(99, static_cast<int>(part * 100)), 100);
    };
    const std::vector<Problem> here =
        args.layers
            ? as_layers(problems, *target)
            : for_target(engine, problems, *target, args.packed || (args.archs.empty() && target->cpu), warnings);
    for (const Problem& p : here)  // with --reference; otherwise it is a failure
      if (std::string why = policy.reference ? only_reference(p, *target) : ""; !why.empty())
        warnings.push_back(std::move(why));
    add(all, engine.prewarm(here, std::span(&target, 1), policy));
  }
  return all;
}

// The first line of a few different ones: a mistake in a template, or a compiler that is too old for a target, fails
// every candidate in the same way. --json has all of them whole.
void show_failures(const PrewarmReport& report) {
  constexpr std::size_t kShown = 5;
  std::vector<std::pair<std::string, int>> reasons;
  std::vector<std::string> first;
  for (const std::string& failure : report.failures) {
    const std::string line = failure.substr(0, failure.find('\n'));
    const auto colon = line.find(": ");
    const std::string reason = colon == line.npos ? line : line.substr(colon + 2);
    const auto known = std::find_if(reasons.begin(), reasons.end(), [&](const auto& r) { return r.first == reason; });
    if (known != reasons.end()) {
      ++known->second;
      continue;
    }
    reasons.emplace_back(reason, 1);
    first.push_back(line);
  }
  for (std::size_t i = 0; i < first.size() && i < kShown; ++i)
    tell(
        fmt::format("error: {}{}", first[i],
                    reasons[i].second > 1 ? fmt::format(" (and {} more in the same way)", reasons[i].second - 1) : ""));
  if (first.size() > kShown) tell(fmt::format("error: {} more ways to fail; --json lists all", first.size() - kShown));
}

void show_evicted(const PrewarmReport& report, const Options& options) {
  tell(
      fmt::format("error: {} binar{} evicted again: all of them together exceed the cache's cap of {} bytes. Raise "
                  "TILEWRIGHT_CACHE_CAP, or prewarm fewer problems, targets or candidates into one file",
                  report.evicted, report.evicted == 1 ? "y was" : "ies were", options.cache_cap));
}

int run_prewarm(const Context& context, const PrewarmArgs& args) {
  const std::vector<Problem> problems = all_problems(args.problem, args.workloads);
  Options options = context.options();
  const std::vector<const Arch*> archs = targets(args.archs, options);
  need_cache(options);
  if (options.cache == ":memory:")
    throw Error(ErrorCode::invalid_argument, "--cache", options.cache,
                "must be a file, in which the kernels outlive this process");
  Engine engine(std::move(options));
  std::vector<std::string> warnings;
  const PrewarmReport report = prewarm(engine, problems, archs, args, warnings);
  std::vector<double> sorted = report.compile_seconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted.empty() ? 0 : sorted[sorted.size() / 2];
  for (const std::string& warning : warnings) tell("warning: " + warning);
  if (context.json) {
    Json names = Json::array();
    for (const Arch* a : archs) names.push_back(a->name);
    print_json(Json{{"problems", problems.size()},
                    {"archs", names},
                    {"compiled", report.compiled},
                    {"skipped", report.skipped},
                    {"failed", report.failed},
                    {"evicted", report.evicted},
                    {"cancelled", report.cancelled},
                    {"seconds", report.seconds},
                    {"compile_seconds", report.compile_seconds},
                    {"failures", report.failures},
                    {"warnings", warnings}});
  } else {
    print(fmt::format(
        "{} compiled, {} skipped (stored already, or the same binary as another), {} failed{}, in {:.2f} s{}",
        report.compiled, report.skipped, report.failed,
        report.evicted ? fmt::format(", {} evicted", report.evicted) : "", report.seconds,
        sorted.empty() ? "" : fmt::format(" (median {:.2f} s per compile)", median)));
  }
  show_failures(report);
  if (report.evicted) show_evicted(report, engine.options());
  if (report.cancelled) {
    tell("stopped by Ctrl-C; what was compiled is kept, and the same command goes on from there");
    return kInterrupted;
  }
  return report.failed || report.evicted ? kEnvironment : kOk;
}

}  // namespace

void add_prewarm(Context& context) {
  const auto args = std::make_shared<PrewarmArgs>();
  CLI::App* command = add_command(context, *context.app, "prewarm", "Compile a workload's kernels; needs no GPU");
  add_problem(command, args->problem, false);
  command
      ->add_option("--arch", args->archs, "Targets, separated by commas; all; native (default: this machine's device)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("TARGET");
  add_workload(command, args->workloads);
  command->add_flag("--packed", args->packed, "Weights in the order that each target's kernels want");
  command->add_flag("--layers", args->layers,
                    "Each gemm and conv as a Layer launches it: packed, with its workspace and the cast of its x");
  command->add_option("--top", args->policy.top, "Candidates per problem")->check(CLI::Range(1, 10000));
  command->add_option("--jobs", args->policy.jobs, "Compiles at a time; 0: one per core")->check(CLI::Range(0, 1024));
  command->add_flag("--reference", args->policy.reference,
                    "Compile the slow reference kernel where no other takes a problem, which is an error otherwise");
  command->add_flag("--no-buckets", args->named_rows, "Only the rows that the workload names, not every bucket");
  command->add_flag("--threads", args->threads, "Compile in threads of this process instead of worker processes");
  command->callback([&context, args] { context.action = [&context, args] { return run_prewarm(context, *args); }; });
}

}  // namespace tilewright::cli
