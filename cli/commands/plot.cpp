// SPDX-License-Identifier: Apache-2.0
// plot: what serves which number of rows, as a picture.
#include <fmt/format.h>
#include <tilewright/operation.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "cli/output_file.h"
#include "cli/picture.h"
#include "cli/roofline.h"

namespace tilewright::cli {
namespace {

struct TimedRows {
  std::int64_t rows = 0;
  double microseconds = 0;
  std::string name = {};  // of what was timed
};

struct BenchTimes {
  std::vector<TimedRows> measured, rivals;  // kernels of the problem's own ranges, and others
};

struct PlotArgs {
  ProblemArgument problem;
  bool packed = false;
  std::string device, rivals, output;
};

Roofline roofline_of(const Problem& problem, const Device& device, const std::vector<RowRange>& ranges) {
  Roofline roofline;
  for (const RowRange& r : ranges)
    roofline.add(problem.with_rows(r.last ? r.last : kMostStepRows), device, r.candidate);
  return roofline;
}

std::vector<TimedRows> points_of(const Problem& problem, const Roofline& roofline) {
  std::vector<TimedRows> points;
  constexpr int kPerOctave = 8;
  for (int i = 0; points.empty() || points.back().rows < kMostStepRows; ++i) {
    const auto rows = static_cast<std::int64_t>(std::exp2(static_cast<double>(i) / kPerOctave) + 0.5);
    if (!points.empty() && rows == points.back().rows) continue;
    const Problem at = problem.with_rows(rows);
    const double memory = roofline.memory_us(at), compute = roofline.compute_us(at);
    points.push_back({rows, std::max(memory, compute), compute > memory ? "matrix units" : "memory"});
  }
  return points;
}

// Reads the times of a problem from what `tilewright_bench gemm --every-m` writes: its own kernels' and the rivals'.
BenchTimes read_rivals(const std::string& file, const Problem& problem, const std::string& rows_name) {
  BenchTimes times;
  const auto refusal = [&](const std::string& allowed) {
    return Error(ErrorCode::invalid_argument, "--rivals", file, allowed);
  };
  if (!std::filesystem::is_regular_file(file)) throw Error(ErrorCode::io, "--rivals", file, "does not exist");
  std::ifstream stream(file);
  const Json json = Json::parse(stream, nullptr, false);
  const std::string op(problem.op());
  if (json.is_discarded() || !json.is_object() || !json.contains("results") || !json["results"].is_object() ||
      !json["results"].contains(op) || !json["results"][op].is_array())
    throw refusal(
        fmt::format("must be JSON of `tilewright_bench {} --every-m`, with a list \"results\".\"{}\"", op, op));
  std::string others;
  for (const Json& row : json["results"][op]) {
    if (!row.is_object() || !row.contains("problem") || !row["problem"].is_string()) continue;
    const Problem theirs = Problem::parse(row["problem"].get<std::string>());
    if (!theirs.same_but_rows(problem)) {
      others += (others.empty() ? "" : "; ") + theirs.text();
      continue;
    }
    if (!row.contains("points") || !row["points"].is_array())
      throw refusal("must have a list \"points\" for " + theirs.text());
    for (const Json& point : row["points"]) {
      const auto number = [&](const std::string& name) {
        if (!point.is_object() || !point.contains(name) || !point[name].is_number()) return 0.0;
        return point[name].get<double>();
      };
      const double rows = number(rows_name), us = number("us"), rival_us = number("rival_us");
      if (!(rows >= 1 && us > 0))
        throw refusal(fmt::format("must have points with positive numbers \"{}\" and \"us\"", rows_name));
      if (rows > kMostStepRows) continue;
      const auto name = [&](const char* field) {
        return point.contains(field) && point[field].is_string() ? point[field].get<std::string>() : field;
      };
      times.measured.push_back({static_cast<std::int64_t>(rows), us, name("choice")});
      if (rival_us > 0) times.rivals.push_back({static_cast<std::int64_t>(rows), rival_us, name("rival")});
    }
    return times;
  }
  throw refusal("must have times of this problem; the file has " + (others.empty() ? "none of any" : others));
}

Json json_of(const std::vector<TimedRows>& points, const std::string& rows_name) {
  Json list = Json::array();
  for (const TimedRows& p : points)
    list.push_back({{rows_name, p.rows}, {"microseconds", p.microseconds}, {"name", p.name}});
  return list;
}

int run_plot(const Context& context, const PlotArgs& args) {
  Options options = context.options();
  options.cache_read_only = true;
  Problem problem = args.problem.parse();
  if (problem.fixed_rows())
    throw Error(ErrorCode::invalid_argument, "PROBLEM", problem.text(),
                fmt::format("must be one whose number of rows varies from launch to launch; that of {} does not",
                            problem.op()));
  refuse_input("--output", args.output, std::span(&args.rivals, 1));
  const Device device = device_or_cpu(args.device, options, "plot");
  tell_of_cpu(args.device, device);
  const Engine engine(std::move(options));
  problem = args.packed ? engine.packed(problem, device.arch()) : as_computed(problem, device.arch());

  const std::string rows_name = problem.operation().contract(problem).rows_name;
  std::vector<RowRange> ranges = engine.ranges(problem, device);
  std::erase_if(ranges, [](const RowRange& r) { return r.first > kMostStepRows; });
  if (std::none_of(ranges.begin(), ranges.end(), [](const RowRange& r) { return r.measured; }))
    throw Error(ErrorCode::invalid_argument, "PROBLEM", problem.text(),
                fmt::format("must have a stored choice, and {} has none of it for {}; make one with: tilewright tune "
                            "--all-m \"{}\"",
                            engine.options().cache, device.name(), problem.text()));
  const Roofline rates = roofline_of(problem, device, ranges);
  const BenchTimes times = args.rivals.empty() ? BenchTimes() : read_rivals(args.rivals, problem, rows_name);
  Json listed = Json::array();
  for (const RowRange& r : ranges) listed.push_back(json(r));
  const Json data{{"problem", problem.text()},
                  {"device", device.name()},
                  {"arch", device.arch().name},
                  {"version", TILEWRIGHT_VERSION_STRING},
                  {"rows_name", rows_name},
                  {"ranges", listed},
                  {"tbps", rates.tbps},
                  {"tflops", rates.tflops},
                  {"roofline", json_of(points_of(problem, rates), rows_name)},
                  {"measured", json_of(times.measured, rows_name)},
                  {"rivals", json_of(times.rivals, rows_name)}};
  if (!args.output.empty()) write_picture("--output", args.output, data);
  if (context.json)
    print_json(data);
  else if (args.output.empty())
    print(svg_of("plot", data));
  return kOk;
}

}  // namespace

void add_plot(Context& context) {
  const auto args = std::make_shared<PlotArgs>();
  CLI::App* command = add_command(context, *context.app, "plot", "Draw what serves which number of rows, and how fast");
  add_problem(command, args->problem, true);
  command->add_flag("--packed", args->packed, "Weights in the order that this device's kernels want; on a CPU always");
  add_device(command, args->device);
  command->add_option("--rivals", args->rivals, "Times to draw too: JSON of tilewright_bench gemm --every-m")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("-o,--output", args->output,
                   "The picture: .svg or .png; .json: its data (default: SVG on standard output)")
      ->type_name("FILE")
      ->check(not_empty());
  command->callback([&context, args] { context.action = [&context, args] { return run_plot(context, *args); }; });
}

}  // namespace tilewright::cli
