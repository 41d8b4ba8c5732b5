// SPDX-License-Identifier: Apache-2.0
// Compile times and how they scale. Needs no device.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "bench/bench.h"

namespace tilewright::bench {

std::vector<Problem> compile_problems() {
  std::vector<Problem> out;
  for (const char* formats : {"x=q8_1 w=q4_0 y=f32", "x=q8_1 w=q4_k y=f32", "x=f16 w=f16 y=f16", "x=bf16 w=q4_0 y=bf16",
                              "x=f16 w=nvfp4 y=f16 global=mul", "x=bf16 w=bf16 y=bf16"})
    for (int m : {1, 16, 512}) {
      std::string f = formats, global;
      if (const auto at = f.find(" global"); at != std::string::npos) global = f.substr(at), f = f.substr(0, at);
      out.push_back(Problem::parse(fmt::format("gemm {} m={} n=4096 k=14336{}", f, m, global)));
    }
  return out;
}

namespace {

// Candidates of one kind of kernels, and the longest compile times that pass.
struct Compiled {
  const char *name, *target;
  double median, slowest;
  std::vector<Problem> problems;
};

// Problems for Hopper's kernels: plain operands, coded ones as tiles, and codes by codes.
std::vector<Problem> hopper_problems() {
  std::vector<Problem> out;
  for (const char* formats :
       {"x=bf16 w=bf16 y=bf16", "x=e4m3_row w=e4m3_row y=bf16", "x=e4m3_row w=e4m3_row y=bf16 accum=fast",
        "x=f16 w=int4_g128 y=f16 pack=tiles", "x=f16 w=q4_0 y=f16 pack=tiles", "x=f16 w=q4_k y=f16 pack=tiles",
        "x=f16 w=nvfp4 y=f16 global=mul pack=tiles", "x=bf16 w=mxfp4 y=bf16 pack=tiles",
        "x=int8_row w=int4_g128 y=bf16 pack=tiles", "x=e4m3_row w=int4_g128 y=bf16 pack=tiles",
        "x=q8_1 w=q4_0 y=f32 pack=tiles"})
    for (int m : {1, 16, 64, 1024, 4096})
      out.push_back(Problem::parse(fmt::format("gemm {} m={} n=10240 k=8192 workspace={}", formats, m, 32 << 20)));
  return out;
}

Json compile_times(Engine& engine, const CompileOptions& options, const Compiled& kind) {
  const Arch& target = arch(kind.target);
  std::vector<double> seconds;
  std::string slowest;
  Json rows = Json::array();
  for (const Problem& problem : kind.problems) {
    const std::vector<Planned> plan = engine.plan(problem, target);
    for (std::size_t i = 0; i < std::min<std::size_t>(4, plan.size()); ++i) {
      const Source source = family(problem.op(), plan[i].candidate.family).source(problem, target, plan[i].candidate);
      const Binary binary = compile(source, target, options);
      if (seconds.empty() || binary.seconds > *std::max_element(seconds.begin(), seconds.end()))
        slowest = problem.text() + " " + plan[i].candidate.text();
      seconds.push_back(binary.seconds);
      rows.push_back({{"problem", problem.text()},
                      {"candidate", plan[i].candidate.text()},
                      {"seconds", binary.seconds},
                      {"registers", binary.resources.registers},
                      {"spill_bytes", binary.resources.spill_bytes}});
    }
  }
  const double middle = median(seconds), worst = *std::max_element(seconds.begin(), seconds.end());
  const auto mark = [](bool ok) { return ok ? "pass" : "short"; };
  fmt::print(
      "{}: {} candidates for {}, one core, NVRTC's cache off: median {:.3f} s (must be <= {}: {}), slowest {:.3f} s "
      "(must be <= {}: {}): {}\n",
      kind.name, seconds.size(), target.name, middle, kind.median, mark(middle <= kind.median), worst, kind.slowest,
      mark(worst <= kind.slowest), slowest);
  return {{"target", kind.target}, {"median_s", middle}, {"max_s", worst}, {"slowest", slowest}, {"rows", rows}};
}

}  // namespace

Json compile_times() {
  Options options = Options::from_env();
  options.cache = ":memory:";
  Engine engine(options);
  Json out;
  for (const Compiled& kind : {Compiled{"portable", "sm_89", 0.25, 0.4, compile_problems()},
                               Compiled{"hopper", "sm_90a", 0.4, 0.6, hopper_problems()}})
    out[kind.name] = compile_times(engine, CompileOptions::of(options), kind);
  return out;
}

Json prewarm_scaling(const Settings& settings) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const Arch* target[] = {&arch("sm_90a")};
  const auto once = [&](int jobs) {
    Options options = Options::from_env();
    options.cache = ":memory:";
    Engine engine(options);
    PrewarmPolicy policy;
    policy.top = 4;
    policy.jobs = jobs;
    policy.every_bucket = false;
    if (jobs > 1) policy.worker = settings.self;
    const std::vector<Problem> problems = compile_problems();
    return engine.prewarm(problems, target, policy);
  };
  const PrewarmReport one = once(1), all = once(cores);
  const double ratio = one.seconds / all.seconds, must = cores >= 16 ? 8.0 : cores >= 2 ? 1.7 : 0.0;
  fmt::print("{} candidates ({} failed): {:.2f} s on one core, {:.2f} s on {}: {:.2f}x (must be >= {}: {})\n",
             all.compiled, all.failed, one.seconds, all.seconds, cores, ratio, must, ratio >= must ? "pass" : "short");
  return {{"candidates", all.compiled}, {"failed", all.failed},       {"cores", cores},
          {"one_core_s", one.seconds},  {"all_cores_s", all.seconds}, {"ratio", ratio}};
}

}  // namespace tilewright::bench
