// SPDX-License-Identifier: Apache-2.0
// tilewright_bench WHAT... [--out FILE]: the measured tables of docs/reference/results.md. A ratio of one run counts;
// an absolute time does not.
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
  app.add_option("what", what,
                 "compile prewarm kernels quantize launch startup regret: all of them by default; gemm conv sweep "
                 "grouped cast_rows x_from gptq code cpu");
  app.add_option("--out", out, "result file (JSON)");
  app.add_option("--problems", settings.problems, "regret: number of problems");
  app.add_option("--skip", settings.skip,
                 "regret: leave out so many of the first (10: those that the model was fitted on)");
  app.add_option("--child", child, "internal: run one step in this process and print its result");
  app.add_option(
      "--cache", settings.cache,
      "gemm, conv, grouped, quantize, cast_rows, x_from, gptq: keep choices in this file; regret: take binaries "
      "from it; internal: the "
      "cache of a child");
  app.add_option(
      "--rows", settings.rows,
      "gemm: only rows with this in 'large|decode LABEL; TARGETS; PROBLEM'; several, by |; with --every-m "
      "whole labels. conv: labels of rows or parts of them. quantize, cast_rows: problems with this, and not "
      "those of the table alone. x_from: only x=FORMAT w=FORMAT with this. code: only candidates with this in 'TARGET; "
      "FAMILY; PROBLEM'. cpu: only problems with this");
  app.add_option("--shapes", settings.shapes, "gemm, gptq: N,K;N,K;... or 'judged' for all that are judged");
  app.add_option("--m", settings.ms, "gemm: only these m, e.g. 1,1024");
  app.add_option("--layers", settings.layers,
                 "conv: 1,2,u1,... or 'judged' for the twelve of its table, which is the default, or 'all'");
  app.add_option("--sizes", settings.sizes,
                 "conv: only parts of layers (1,3,4,8,11 unless given), of so many percent of their width, e.g. "
                 "100,90,75,60,50,30: is a smaller one slower than a larger one?");
  app.add_option("--problem", settings.problem,
                 "sweep, conv: PROBLEM@RIVAL, several, by |; of conv bf16 fp16 tf32 fp8 int8, several, by +");
  app.add_option("--layer", settings.layer, "gptq: a folder with w.npy and h.npy (bench/gptq_torch.py makes them)");
  app.add_flag("--host", settings.host, "gptq: on the host too, and whether it gives the same bits");
  app.add_option("--list", settings.list, "sweep: a file of candidates instead of all that are legal");
  app.add_option("--pack", settings.pack, "gemm: ask for pack=VALUE where the weights have it");
  app.add_option("--seconds", settings.seconds,
                 "gemm, conv, grouped, regret: start nothing new after this long; rows of gemm and conv that are left "
                 "count as short");
  app.add_option("--tune-seconds", settings.tune_seconds,
                 "gemm, conv: tuning time of each problem, 6 unless given; 60 with --every-m");
  app.add_option("--rival-seconds", settings.rival_seconds,
                 "conv: time for the plans of one variant of cuDNN, 10 unless given");
  app.add_option("--threads", settings.threads, "cpu: threads of the kernels, the read loop and ggml; 0: all CPUs");
  app.add_option(
      "--target", settings.target,
      "cpu: a lower target that this CPU runs, such as x86-64-v3; ggml then has this target's features alone");
  app.add_option("--ggml", settings.ggml,
                 "cpu: a source folder of ggml, whose CPU backend is built in a temporary folder and timed as well");
  app.add_flag("--each", settings.each, "conv: print the time of each candidate");
  app.add_flag("--tuned", settings.tuned,
               "conv: choose by Engine::tune, which checks whole outputs, not by times alone");
  app.add_option("--candidates", settings.candidates,
                 "gemm, conv: candidates measured per problem, 16 unless given; 40 with --every-m")
      ->check(CLI::Range(1, 1000));
  app.add_option("--sustained", settings.sustained,
                 "gemm: also time many tokens in a row for so many seconds, at the clock that power then leaves; conv: "
                 "in a row for so long, instead of 16 replays");
  app.add_option("--rounds", settings.rounds, "gemm, conv: timed replays")->check(CLI::Range(1, 1000));
  app.add_flag("--every-m", settings.every_m,
               "gemm: layers tuned at once, timed at 27 numbers of tokens and 20 random ones, rested and in a row");
  app.add_flag("--profile", settings.profile,
               "gemm, quantize: time nothing; launch each kernel and its fastest rival once, for a profiler that "
               "waits to be told (bench/counters.sh)");
  CLI11_PARSE(app, argc, argv);
  settings.self = argv[0];
  if (settings.every_m && !app.count("--tune-seconds")) settings.tune_seconds = 60;
  if (settings.every_m && !app.count("--candidates")) settings.candidates = 40;
  try {
    if (child == "startup" || child == "startup-one") return startup_child(settings, child == "startup-one");
    const Options options = Options::from_env();
    const bool gpu = Device::count(options.driver) > 0;
    if (what.empty()) what = {"compile", "prewarm", "kernels", "quantize", "launch", "startup", "regret"};
    std::optional<Device> device;
    if (what == std::vector<std::string>{"cpu"})
      device = cpu_device(settings);
    else if (gpu)
      device = Device::open(0, options.driver);
    Json results;
    for (const std::string& name : what) {
      fmt::print("== {}\n", name);
      if (name == "compile")
        results[name] = compile_times();
      else if (name == "prewarm")
        results[name] = prewarm_scaling(settings);
      else if (name == "code")
        results[name] = code(settings);
      else if (name == "cpu")
        results[name] = cpu(settings);
      else if (!gpu)
        fmt::print("skipped: no CUDA device\n");
      else if (name == "kernels")
        results[name] = kernels(*device);
      else if (name == "gemm")
        results[name] = settings.every_m ? every_m(*device, settings) : gemms(*device, settings);
      else if (name == "sweep")
        results[name] = sweep(*device, settings);
      else if (name == "grouped")
        results[name] = grouped(*device, settings);
      else if (name == "conv")
        results[name] = convs(*device, settings);
      else if (name == "quantize")
        results[name] = quantizing(*device, settings);
      else if (name == "cast_rows")
        results[name] = cast_rows(*device, settings);
      else if (name == "x_from")
        results[name] = x_from(*device, settings);
      else if (name == "gptq")
        results[name] = gptqs(*device, settings);
      else if (name == "launch")
        results[name] = launch_costs(*device);
      else if (name == "startup")
        results[name] = startup(settings, *device);
      else if (name == "regret")
        results[name] = regret(*device, settings);
      else
        throw Error(ErrorCode::invalid_argument, "what", name,
                    "must be one of compile prewarm kernels quantize launch startup regret gemm conv sweep grouped "
                    "cast_rows x_from "
                    "gptq code cpu");
      std::fflush(stdout);
      write(out, environment(device ? &*device : nullptr, options), results);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "tilewright_bench: {}\n", e.what());
    return 1;
  }
  return 0;
}
