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

Json compile_times() {
  Options options = Options::from_env();
  options.cache = ":memory:";
  Engine engine(options);
  const Arch& target = arch("sm_90a");
  std::vector<double> seconds;
  std::string slowest;
  Json rows = Json::array();
  for (const Problem& problem : compile_problems()) {
    const std::vector<Planned> plan = engine.plan(problem, target);
    for (std::size_t i = 0; i < std::min<std::size_t>(4, plan.size()); ++i) {
      const Source source = family(problem.op(), plan[i].candidate.family).source(problem, target, plan[i].candidate);
      const Binary binary = compile(source, target, {options.nvrtc, false});
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
  const double worst = *std::max_element(seconds.begin(), seconds.end());
  fmt::print(
      "{} candidates for {}, one core, NVRTC's cache off: median {:.3f} s (must be <= 0.25: {}), slowest {:.3f} s "
      "(must be <= 0.4: {}): {}\n",
      seconds.size(), target.name, median(seconds), median(seconds) <= 0.25 ? "pass" : "short", worst,
      worst <= 0.4 ? "pass" : "short", slowest);
  return {{"median_s", median(seconds)}, {"max_s", worst}, {"slowest", slowest}, {"rows", rows}};
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
