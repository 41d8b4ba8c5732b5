// SPDX-License-Identifier: Apache-2.0
// bench: a problem's time over numbers of rows, beside what the device could do.
#include <fmt/format.h>
#include <tilewright/operation.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/launching.h"
#include "cli/picture.h"
#include "cli/roofline.h"

namespace tilewright::cli {
namespace {

struct BenchArgs {
  ProblemArgument problem;
  std::vector<std::int64_t> rows;
  std::string device, svg;
  bool tune = false, packed = false, csv = false;
  std::uint64_t seed = 1;
};

struct Timed {
  std::int64_t rows;
  double microseconds, gbps, tflops, of_roofline;
  std::string kernel;
};

std::vector<std::int64_t> rows_of(const BenchArgs& args, const Problem& problem) {
  if (problem.fixed_rows()) {
    if (!args.rows.empty())
      throw Error(ErrorCode::invalid_argument, "--rows", std::to_string(args.rows.front()),
                  fmt::format("is not for {}, whose number of rows is part of the problem", problem.op()));
    return {problem.rows()};
  }
  std::vector<std::int64_t> rows = args.rows;
  if (rows.empty())
    for (std::int64_t m = 1; m <= 1024; m *= 2) rows.push_back(m);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::vector<Timed> measure(Engine& engine, const BenchArgs& args, const Problem& largest, const Device& device,
                           const std::vector<std::int64_t>& rows) {
  if (args.tune) {
    const Progress progress;
    TunePolicy policy;
    policy.progress = progress;
    policy.all_rows = !largest.fixed_rows();
    engine.tune(largest, device, policy);
  }
  const Kernel kernel = engine.prepare(largest, device);
  Task task;
  largest.operation().describe(largest, task);
  const HostBuffers host(task, args.seed);
  const DeviceBuffers buffers(device, host);
  const OwnedStream stream(device);
  std::vector<Timed> timed;
  const Progress progress;
  for (const std::int64_t m : rows) {
    const Problem problem = largest.with_rows(m);
    const std::vector<std::byte> arguments = task.arguments(buffers.pointers, m);
    const double us =
        time_launches(device, [&] { kernel.launch(stream.get(), arguments, problem.rows(), problem.cols()); });
    const Candidate& used = kernel.candidate(m);
    Roofline roofline;
    roofline.add(problem, device, used);
    timed.push_back(
        {m, us, problem.min_bytes() / us / 1e3, problem.ops() / us / 1e6, roofline.us(problem) / us, used.text()});
    progress("bench", static_cast<int>(timed.size()), static_cast<int>(rows.size()));
  }
  return timed;
}

void show(const Context& context, const BenchArgs& args, const Problem& problem, const Device& device,
          const std::vector<Timed>& timed) {
  const std::string name = problem.fixed_rows() ? "rows" : problem.operation().contract(problem).rows_name;
  Json points = Json::array();
  for (const Timed& t : timed)
    points.push_back({{name, t.rows},
                      {"microseconds", t.microseconds},
                      {"gbps", t.gbps},
                      {"tflops", t.tflops},
                      {"of_roofline", t.of_roofline},
                      {"kernel", t.kernel}});
  const Json data{{"problem", problem.text()},  {"device", device.name()},
                  {"arch", device.arch().name}, {"version", TILEWRIGHT_VERSION_STRING},
                  {"rows_name", name},          {"points", points}};
  if (!args.svg.empty()) write_picture("--svg", args.svg, data);
  if (context.json) return print_json(data);
  if (args.csv) {
    std::string out = name + ",microseconds,gbps,tflops,of_roofline,kernel\n";
    for (const Timed& t : timed)
      out += fmt::format("{},{:.3f},{:.3f},{:.4f},{:.4f},{}\n", t.rows, t.microseconds, t.gbps, t.tflops, t.of_roofline,
                         t.kernel);
    return print(out);
  }
  print(fmt::format("{} on {} ({})", problem.text(), device.name(), device.arch().name));
  Table table({name, "time", "GB/s", "TFLOP/s", "of the roofline", "kernel"});
  for (const Timed& t : timed)
    table.add({std::to_string(t.rows), microseconds(t.microseconds), fmt::format("{:.1f}", t.gbps),
               fmt::format("{:.3g}", t.tflops), fmt::format("{:.0f} %", 100 * t.of_roofline), t.kernel});
  print(table.text());
  print("Time per launch, back to back, operands warm. The roofline is the cost model's for this device.");
}

int run_bench(const Context& context, const BenchArgs& args) {
  const Problem asked = args.problem.parse();
  const std::vector<std::int64_t> rows = rows_of(args, asked);
  need_pictures("--svg", args.svg);
  const Options options = context.options();
  const Device device = device_or_cpu(args.device, options, "bench");
  tell_of_cpu(args.device, device);
  Engine engine(options);
  const Problem most = asked.with_rows(rows.back());
  const Problem problem = args.packed ? engine.packed(most, device.arch()) : as_computed(most, device.arch());
  if (problem.min_bytes() > kMostBytes)
    throw Error(ErrorCode::too_large, "PROBLEM", problem.text(),
                fmt::format("has more than {:g} bytes in all operands", kMostBytes));
  show(context, args, problem, device, measure(engine, args, problem, device, rows));
  return kOk;
}

}  // namespace

void add_bench(Context& context) {
  const auto args = std::make_shared<BenchArgs>();
  CLI::App* command = add_command(context, *context.app, "bench",
                                  "Time a problem over numbers of rows: GB/s, TFLOP/s, share of the roofline");
  add_problem(command, args->problem, true);
  command
      ->add_option("--rows,--m", args->rows,
                   "Numbers of rows (a gemm's m), separated by commas (default: 1, 2, 4 ... 1024)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->type_name("M");
  add_device(command, args->device);
  command->add_flag("--packed", args->packed, "Weights in the order that this device's kernels want; on a CPU always");
  command->add_flag("--tune", args->tune, "Measure candidates for every number of rows first; remember the choice");
  command->add_option("--seed", args->seed, "Seed of the random values")->check(at_least(0));
  command->add_flag("--csv", args->csv, "Print comma-separated values");
  command->add_option("--svg", args->svg, "Draw the times to this file too, or by its end a .png or the data (.json)")
      ->type_name("FILE")
      ->check(not_empty());
  command->callback([&context, args] { context.action = [&context, args] { return run_bench(context, *args); }; });
}

}  // namespace tilewright::cli
