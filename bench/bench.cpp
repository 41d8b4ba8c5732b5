// SPDX-License-Identifier: Apache-2.0
// tilewright_bench WHAT... [--out FILE]: the measured table of the README. A ratio of one run counts; an absolute time
// does not.
#include "bench/bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  using namespace tilewright;
  using namespace tilewright::bench;
  if (argc == 2 && std::string_view(argv[1]) == "compile-worker") return compile_worker_main(0, 1);
  CLI::App app{"Benchmarks of tilewright"};
  std::vector<std::string> what;
  std::string out, child;
  Settings settings;
  app.add_option("what", what, "compile prewarm kernels cast launch startup regret; all of them by default");
  app.add_option("--out", out, "result file (JSON)");
  app.add_option("--problems", settings.problems, "regret: number of problems");
  app.add_option("--child", child, "internal: run one step in this process and print its result");
  app.add_option("--cache", settings.cache, "internal: the cache of a child");
  CLI11_PARSE(app, argc, argv);
  settings.self = argv[0];
  try {
    if (child == "startup" || child == "startup-one") return startup_child(settings, child == "startup-one");
    const bool gpu = Device::count() > 0;
    if (what.empty()) what = {"compile", "prewarm", "kernels", "cast", "launch", "startup", "regret"};
    const Options options = Options::from_env();
    std::optional<Device> device;
    if (gpu) device = Device::open(0);
    Json results;
    for (const std::string& name : what) {
      fmt::print("== {}\n", name);
      if (name == "compile")
        results[name] = compile_times();
      else if (name == "prewarm")
        results[name] = prewarm_scaling(settings);
      else if (!gpu)
        fmt::print("skipped: no CUDA device\n");
      else if (name == "kernels")
        results[name] = kernels(*device);
      else if (name == "cast")
        results[name] = casts(*device);
      else if (name == "launch")
        results[name] = launch_costs(*device);
      else if (name == "startup")
        results[name] = startup(settings, *device);
      else if (name == "regret")
        results[name] = regret(*device, settings);
      else
        throw Error(ErrorCode::invalid_argument, "what", name, "compile prewarm kernels cast launch startup regret");
      std::fflush(stdout);
      write(out, environment(gpu ? &*device : nullptr, options), results);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "tilewright_bench: {}\n", e.what());
    return 1;
  }
  return 0;
}
