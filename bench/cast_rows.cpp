// SPDX-License-Identifier: Apache-2.0
// `bench cast_rows`: casts of every number of rows by one prepared kernel object. Few rows are compared with what no
// kernel can avoid, an empty launch and the bytes; and no number of rows may take longer than a larger one.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <set>

#include "bench/bench.h"
#include "bench/rivals/cuda.h"

namespace tilewright::bench {
namespace {

constexpr std::int64_t kGiven[] = {1,   2,   4,   8,   16,   33,   64,   100,  128, 200,
                                   256, 333, 512, 777, 1024, 1500, 2048, 3000, 4096};
constexpr std::int64_t kMostRows = 4096, kFewRows = 64;
constexpr int kRandom = 8;
constexpr double kSlack = 1.03;  // a launch may take that much longer than one of more rows
constexpr double kFew = 1.3;     // of an empty launch and the bytes, at most, up to kFewRows
constexpr int kMostLaunches = 8192;
constexpr double kGraphMicroseconds = 2000;
constexpr std::size_t kAlign = 256;

constexpr const char* kProblems[] = {
    "cast x=bf16 y=e4m3_row rows=4096 cols=4096",
    "cast x=bf16 y=int8_row rows=4096 cols=4096",
    "cast x=bf16 y=nvfp4 rows=4096 cols=4096",
    "cast x=bf16 y=mxfp8 rows=4096 cols=4096",
    "cast x=f32 y=q8_1 rows=4096 cols=4096",
    "cast x=f32 y=q4_0 rows=4096 cols=4096",
    "cast x=e4m3_row y=bf16 rows=4096 cols=4096",
    "cast x=nvfp4 y=bf16 rows=4096 cols=4096",
    "fused_cast x=bf16 y=e4m3_row rows=4096 cols=4096 residual=add norm=rms weight=bf16",
    "fused_cast x=bf16 y=nvfp4 rows=4096 cols=4096 act=silu gate=first",
};

std::vector<std::int64_t> numbers_of_rows() {
  std::set<std::int64_t> rows(std::begin(kGiven), std::end(kGiven));
  std::mt19937 random(26);  // evenly in octaves, and the same in every run
  while (rows.size() < std::size(kGiven) + kRandom)
    rows.insert(static_cast<std::int64_t>(std::exp2(12.0 * static_cast<double>(random()) / 4294967296.0)));
  return {rows.begin(), rows.end()};
}

double median_time(const Replay& replay, int rounds) {
  std::vector<double> samples;
  for (int round = -kWarmRounds; round < rounds; ++round)
    if (const double us = replay.time(); round >= 0) samples.push_back(us);
  return median(samples);
}

// Launches that find nothing to do: what is left is the launch.
double empty_launch(Engine& engine, const Cuda& cuda, const Device& device, int rounds) {
  Probe probe;
  probe.name = "empty";
  probe.text =
      "struct Args { uint4* out; const uint4* in; long long n; };\nextern \"C\" __global__ void probe(const "
      "__grid_constant__ Args) {}\n";
  probe.grids = {{1, 128}};
  probe.in_bytes = probe.out_bytes = 16;
  const Kernel kernel = engine.prepare(probe_task(probe), device);
  const Memory memory(device, 32);
  const std::vector<std::byte> arguments = probe_arguments(memory.data(), memory.data(), 16);
  const Replay replay(cuda, 1024, [&](int) { kernel.launch(cuda.stream(), arguments, 1, 1); });
  return median_time(replay, rounds);
}

// A task's launches of any number of rows, each on rows that no other of a graph touches.
class ColdRows {
 public:
  ColdRows(const Cuda& cuda, const Device& device, const Task& task, std::span<const std::int64_t> numbers)
      : task_(task) {
    for (const Buffer& b : task.buffers) {
      std::size_t bytes = b.bytes;
      for (const std::int64_t rows : numbers)
        if (b.row_bytes) bytes = std::max(bytes, stride(b, rows) * static_cast<std::size_t>(most_launches(rows)));
      std::size_t filled = b.row_bytes ? b.row_bytes * static_cast<std::size_t>(task.rows) : b.bytes;
      bytes = std::max(bytes, filled);
      memory_.emplace_back(device, bytes);
      std::vector<std::byte> content(filled);
      if (b.fill && !b.output) b.fill(content, 1);
      memory_.back().upload(content, 0);
      for (auto* at = static_cast<char*>(memory_.back().data()); filled < bytes; filled *= 2)
        cuda.copy(at + filled, at, std::min(filled, bytes - filled));
    }
  }
  // Enough to read and write kColdBytes.
  int most_launches(std::int64_t rows) const {
    double row_bytes = 0;
    for (const Buffer& b : task_.buffers) row_bytes += static_cast<double>(b.row_bytes);
    return static_cast<int>(std::clamp(std::ceil(kColdBytes / (row_bytes * static_cast<double>(rows))), 16.0,
                                       static_cast<double>(kMostLaunches)));
  }
  std::vector<void*> pointers(std::int64_t rows, int launch) const {
    std::vector<void*> p;
    for (std::size_t i = 0; i < memory_.size(); ++i)
      p.push_back(static_cast<char*>(memory_[i].data()) +
                  stride(task_.buffers[i], rows) * static_cast<std::size_t>(launch));
    return p;
  }

 private:
  static std::size_t stride(const Buffer& b, std::int64_t rows) {
    return (b.row_bytes * static_cast<std::size_t>(rows) + kAlign - 1) / kAlign * kAlign;
  }
  const Task& task_;
  std::vector<Memory> memory_;
};

}  // namespace

Json cast_rows(const Device& device, const Settings& settings) {
  Options options = Options::from_env();
  options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
  Engine engine(options);
  const Cuda cuda(device, options.driver);
  const double ceiling = copy_ceiling(engine, device), empty = empty_launch(engine, cuda, device, settings.rounds);
  fmt::print("copy ceiling {:.2f} TB/s (read + write), an empty launch {:.2f} us\n", ceiling, empty);
  Json out = {{"copy_ceiling_tbps", ceiling}, {"empty_launch_us", empty}, {"rows", Json::array()}};
  const std::vector<std::int64_t> numbers = numbers_of_rows();
  const auto began = std::chrono::steady_clock::now();
  for (const std::string text : kProblems) {
    if (text.find(settings.rows) == text.npos) continue;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > settings.seconds) {
      fmt::print("{}: SHORT: out of time\n", text);
      out["rows"].push_back({{"problem", text}, {"note", "not run: out of time"}});
      continue;
    }
    const Problem problem = Problem::parse(text);
    TunePolicy policy;
    policy.all_rows = true;
    policy.budget_seconds = settings.tune_seconds;
    const TuneReport report = engine.tune(problem, device, policy);
    const Kernel kernel = engine.prepare(problem, device);
    const Task task = engine.task(problem.with_rows(kMostRows), device.arch());
    const ColdRows cold(cuda, device, task, numbers);

    struct Point {
      std::int64_t rows;
      double us, least;  // least: what cannot be avoided
    };
    std::vector<Point> points;
    for (const std::int64_t rows : numbers) {
      const auto launch = [&](int i) {
        kernel.launch(cuda.stream(), task.arguments(cold.pointers(rows, i), rows), rows, task.cols);
      };
      launch(0);
      cuda.synchronize();
      const Replay replay(cuda, cold.most_launches(rows), launch);
      points.push_back(
          {rows, median_time(replay, settings.rounds), empty + problem.with_rows(rows).min_bytes() / ceiling * 1e-6});
    }

    Table table({"rows", "us", "of empty launch + bytes", "choice"});
    Json json = {{"problem", text}, {"tune_seconds", report.seconds}, {"points", Json::array()}};
    int slower = 0;
    double worst = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Point& p = points[i];
      double least_later = 1e30;
      for (std::size_t j = i + 1; j < points.size(); ++j) least_later = std::min(least_later, points[j].us);
      const bool step = p.us > kSlack * least_later;
      slower += step;
      if (p.rows <= kFewRows) worst = std::max(worst, p.us / p.least);
      const std::string choice = kernel.candidate(p.rows).text();
      table.row({fmt::format("{}{}", p.rows, step ? " !" : ""), fmt::format("{:.2f}", p.us),
                 fmt::format("{:.2f}x", p.us / p.least), choice});
      json["points"].push_back({{"rows", p.rows},
                                {"us", p.us},
                                {"of_least", p.us / p.least},
                                {"slower_than_more", step},
                                {"choice", choice}});
    }
    fmt::print("{}{}: up to {} rows {:.2f}x, target {:.1f}x: {}; {} numbers of rows slower than a larger one: {}\n\n",
               table.text(), text, kFewRows, worst, kFew, worst <= kFew ? "pass" : "SHORT", slower,
               slower ? "SHORT" : "pass");
    std::fflush(stdout);
    json["few_rows"] = {{"worst", worst}, {"target", kFew}, {"mark", worst <= kFew ? "pass" : "SHORT"}};
    json["slower_than_more"] = slower;
    out["rows"].push_back(json);
  }
  return out;
}

}  // namespace tilewright::bench
