// SPDX-License-Identifier: Apache-2.0
// `bench gemm --every-m`: one prepared kernel object at many numbers of tokens, most of which nothing was tuned at,
// beside cuBLASLt's best algorithm at each.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "bench/bench.h"
#include "bench/gemm/gemm_jobs.h"
#include "bench/rivals/cublaslt.h"
#include "bench/rivals/cuda.h"

namespace tilewright::bench {
namespace {

constexpr std::int64_t kGiven[] = {1,   2,   4,   8,   16,  24,   33,   48,   64,   96,   128,  160,  200, 256,
                                   333, 384, 512, 600, 777, 1024, 1100, 1500, 2048, 2500, 3000, 4096, 8192};
constexpr int kRandom = 20;
constexpr std::size_t kRivalsInARow = 3;  // the fastest rested
constexpr double kSlack = 1.03;           // a launch may take that much longer than one of more tokens

struct EveryRow {
  const char* label;
  const char* text;    // the problem but for m, n and k
  const char* rival;   // of Rival
  std::int64_t from;   // the fewest tokens that are judged
  double mean, worst;  // targets: geometric mean and worst of the speed over the rival's
};
const EveryRow kRows[] = {
    {"bf16", "x=bf16 w=bf16 y=bf16", "bf16", 1, 1.00, 0.90},
    {"fp16", "x=f16 w=f16 y=f16", "fp16", 1, 1.00, 0.90},
    {"fp8 rows x channels", "x=e4m3_row w=e4m3_row y=bf16 accum=fast", "fp8+rows", 1, 0.97, 0.87},
    {"int4-g128 x bf16", "x=bf16 w=int4_g128 y=bf16", "bf16", 128, 0.95, 0.85},
    {"q4_0 x f16", "x=f16 w=q4_0 y=f16", "fp16", 128, 0.95, 0.85},
    {"nvfp4 x bf16", "x=bf16 w=nvfp4 y=bf16 global=mul", "bf16", 128, 0.95, 0.85},
    {"int4-g128 x fp8", "x=e4m3_row w=int4_g128 y=bf16", "fp8", 128, 0.78, 0.68},
};
// Two that every-m.md names, two that nothing was looked at on.
const std::vector<Shape> kShapes{{8192, 8192}, {18944, 3584}, {5120, 12288}, {9728, 2560}};

std::vector<std::int64_t> tokens() {
  std::set<std::int64_t> ms(std::begin(kGiven), std::end(kGiven));
  // Evenly in octaves, and the same in every run.
  std::mt19937 random(24);
  while (ms.size() < std::size(kGiven) + kRandom) {
    const double octaves = 13.0 * static_cast<double>(random()) / 4294967296.0;
    ms.insert(static_cast<std::int64_t>(std::exp2(octaves)));
  }
  return {ms.begin(), ms.end()};
}

// What the search tried: times by number of tokens, or why there are none.
Json searched(const TuneReport& report) {
  std::map<std::string, Json> candidates;
  for (const Outcome& o : report.outcomes) {
    Json& c = candidates[o.candidate.text()];
    if (o.kind == OutcomeKind::measured)
      c[std::to_string(o.rows)] = std::round(100 * o.microseconds) / 100;
    else
      c[to_string(o.kind)] = o.detail;
  }
  return candidates;
}

struct Point {
  std::int64_t m = 0;
  std::string candidate, rival;
  double us = 0, rival_us = 0, row_us = 0, rival_row_us = 0;  // row: in a row
};

class EveryM {
 public:
  EveryM(const Device& device, const Settings& settings) : settings_(settings), device_(device) {
    options_ = Options::from_env();
    options_.cache = settings.cache.empty() ? ":memory:" : settings.cache;
    engine_.emplace(options_);
    cuda_.emplace(device, options_.driver);
    std::string why;
    library_ = CublasLt::open(device, options_.nvrtc, why);
    if (!library_) fmt::print("cuBLASLt: {}. Nothing passes without it.\n", why);
  }

  Json run() {
    Json all = Json::array();
    std::vector<Shape> shapes = settings_.shapes.empty() ? kShapes : shapes_of(settings_.shapes);
    for (const Shape shape : shapes)
      for (const EveryRow& row : kRows) {
        const std::string asked = "|" + settings_.rows + "|";  // whole labels
        if (!settings_.rows.empty() && asked.find(fmt::format("|{}|", row.label)) == std::string::npos) continue;
        if (seconds() > settings_.seconds) {
          fmt::print("{} {}x{}: not run: out of time\n", row.label, shape.n, shape.k);
          all.push_back({{"label", row.label}, {"n", shape.n}, {"k", shape.k}, {"note", "not run: out of time"}});
          continue;
        }
        try {
          all.push_back(measure(row, shape));
        } catch (const Error& e) {
          fmt::print("{} {}x{}: SHORT: {}\n", row.label, shape.n, shape.k, e.what());
          all.push_back({{"label", row.label}, {"n", shape.n}, {"k", shape.k}, {"error", e.what()}});
        }
        std::fflush(stdout);
      }
    if (settings_.profile) return {{"profiled", profiled_}};
    return all;
  }

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

  Json measure(const EveryRow& row, Shape shape) {
    const std::string text = fmt::format("gemm {} m=1 n={} k={} workspace={} weights=constant", row.text, shape.n,
                                         shape.k, kProblemWorkspace);
    const Problem problem = engine_->packed(Problem::parse(text), device_.arch());
    TunePolicy policy;
    policy.all_rows = true;
    policy.budget_seconds = settings_.tune_seconds;
    policy.max_binaries = settings_.candidates;
    TuneReport report;
    if (!settings_.profile) {  // else the cache has what a run without a profiler chose
      report = engine_->tune(problem, device_, policy);
      std::set<std::string> binaries;
      for (const RowRange& r : report.ranges) binaries.insert(r.candidate.text());
      fmt::print("{} {}x{}: tuned in {:.1f} s, {} compiled, {} times, {}; {} binaries serve {} ranges\n", row.label,
                 shape.n, shape.k, report.seconds, report.compiled, report.measured, report.stopped, binaries.size(),
                 report.ranges.size());
    }
    const Kernel kernel = engine_->prepare(problem, device_);
    std::vector<std::int64_t> ms = tokens();
    if (!settings_.ms.empty()) ms = numbers_of("m", settings_.ms);
    Task task = engine_->task(problem.with_rows(4096), device_.arch());
    task.rows = std::max<std::int64_t>(8192, ms.back());
    const Rotation rotation(*cuda_, device_, pieces_of(task), kColdBytes);
    std::vector<Point> points;
    for (const std::int64_t m : ms)
      if (settings_.profile)
        profile(row, shape, kernel, task, rotation, m);
      else
        points.push_back(time(row, shape, kernel, task, rotation, m));
    if (settings_.profile) return nullptr;
    return conclude(row, shape, problem, report, points);
  }

  auto launch_of(const Kernel& kernel, const Task& task, const Rotation& rotation, std::int64_t m) const {
    return [&, m](int i) {
      const std::vector<void*> pointers = rotation.pointers(i % rotation.copies());
      kernel.launch(cuda_->stream(), task.arguments(pointers, m), m, task.cols);
    };
  }
  // Null where none is asked for, or there is no cuBLASLt.
  std::unique_ptr<Rival> rival_of(const EveryRow& row, Shape shape, std::int64_t m) {
    if (!library_ || m < row.from) return nullptr;
    return std::make_unique<Rival>(*library_, *cuda_, device_, *engine_, row.rival, m, shape.n, shape.k, kColdBytes);
  }

  // One cold launch of each for a profiler (bench/counters.sh): ours, and the rival that is fastest rested.
  void profile(const EveryRow& row, Shape shape, const Kernel& kernel, const Task& task, const Rotation& rotation,
               std::int64_t m) {
    const auto profiled = [&](const std::string& rival, const std::function<void(int)>& launch) {
      const std::string choice = rival.empty() ? kernel.candidate(m).text() : std::string();
      cuda_->profiled([&] { launch(1); });
      profiled_.push_back({{"label", row.label},
                           {"m", m},
                           {"n", shape.n},
                           {"k", shape.k},
                           {"problem", row.text},
                           {"rival", rival},
                           {"choice", choice}});
      fmt::print("{} m={} {}x{}: {}\n", row.label, m, shape.n, shape.k, rival.empty() ? choice : rival);
    };
    const auto launch = launch_of(kernel, task, rotation, m);
    launch(0);
    profiled("", launch);
    const std::unique_ptr<Rival> rival = rival_of(row, shape, m);
    RivalTime* fastest = nullptr;
    double least = 0;
    if (rival)
      for (RivalTime& t : rival->times())
        if (const double us = t.replay.time(); !fastest || us < least) fastest = &t, least = us;
    if (fastest) profiled(fastest->name, fastest->launch);
  }

  Point time(const EveryRow& row, Shape shape, const Kernel& kernel, const Task& task, const Rotation& rotation,
             std::int64_t m) {
    Point p;
    p.m = m, p.candidate = kernel.candidate(m).text();
    const auto launch = launch_of(kernel, task, rotation, m);
    launch(0);
    cuda_->microseconds([&] { launch(1); });
    Replay ours(*cuda_, rotation.launches(cuda_->microseconds([&] { launch(rotation.copies() - 1); })), launch);
    const std::unique_ptr<Rival> rival = rival_of(row, shape, m);
    std::vector<double> samples;
    for (int round = -kWarmRounds; round < settings_.rounds; ++round) {
      if (const double us = ours.time(); round >= 0) samples.push_back(us);
      if (rival)
        for (RivalTime& t : rival->times())
          if (const double us = t.replay.time(); round >= 0) t.samples.push_back(us);
    }
    p.us = median(samples);
    if (!rival) return p;
    std::vector<std::pair<double, RivalTime*>> fastest;
    for (RivalTime& t : rival->times()) fastest.emplace_back(median(t.samples), &t);
    if (fastest.empty()) return p;
    std::sort(fastest.begin(), fastest.end());
    p.rival_us = fastest.front().first, p.rival = fastest.front().second->name;
    // Without rests, in turns. What is fastest rested need not be fastest here.
    fastest.resize(std::min(fastest.size(), kRivalsInARow));
    p.row_us = p.rival_row_us = 1e30;
    for (int turn = 0; turn < 2; ++turn) {
      p.row_us = std::min(p.row_us, ours.in_a_row());
      for (const auto& [us, t] : fastest) p.rival_row_us = std::min(p.rival_row_us, t->replay.in_a_row());
    }
    return p;
  }

  Json conclude(const EveryRow& row, Shape shape, const Problem& problem, const TuneReport& report,
                const std::vector<Point>& points) {
    Table table({"m", "us", "rival us", "rested", "in a row", "rival", "choice"});
    Json json = {{"label", row.label},
                 {"problem", problem.text()},
                 {"n", shape.n},
                 {"k", shape.k},
                 {"tune_seconds", report.seconds},
                 {"compiled", report.compiled},
                 {"search", searched(report)},
                 {"points", Json::array()}};
    double sum[2] = {}, worst[2] = {1e30, 1e30};
    int count = 0, steps = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Point& p = points[i];
      double least_later = 1e30;
      for (std::size_t j = i + 1; j < points.size(); ++j) least_later = std::min(least_later, points[j].us);
      const bool step = p.us > kSlack * least_later;
      steps += step;
      const double rested = p.rival_us > 0 ? p.rival_us / p.us : 0,
                   loaded = p.row_us > 0 ? p.rival_row_us / p.row_us : 0;
      if (rested > 0) {
        sum[0] += std::log(rested), sum[1] += std::log(loaded), ++count;
        worst[0] = std::min(worst[0], rested), worst[1] = std::min(worst[1], loaded);
      }
      table.row({fmt::format("{}{}", p.m, step ? " !" : ""), fmt::format("{:.1f}", p.us),
                 p.rival_us > 0 ? fmt::format("{:.1f}", p.rival_us) : "",
                 rested > 0 ? fmt::format("{:.3f}x", rested) : "", rested > 0 ? fmt::format("{:.3f}x", loaded) : "",
                 p.rival, p.candidate});
      json["points"].push_back({{"m", p.m},
                                {"us", p.us},
                                {"rival_us", p.rival_us},
                                {"row_us", p.row_us},
                                {"rival_row_us", p.rival_row_us},
                                {"rival", p.rival},
                                {"slower_than_more", step},
                                {"choice", p.candidate}});
    }
    const double mean[2] = {count ? std::exp(sum[0] / count) : 0, count ? std::exp(sum[1] / count) : 0};
    const auto mark = [&](int i) { return count && mean[i] >= row.mean && worst[i] >= row.worst ? "pass" : "SHORT"; };
    fmt::print(
        "{}{} {}x{}: rested {:.3f}x, worst {:.3f}x: {}; in a row {:.3f}x, worst {:.3f}x: {}; targets {:.2f}x, {:.2f}x;"
        " {} m slower than a larger one: {}\n\n",
        table.text(), row.label, shape.n, shape.k, mean[0], worst[0], mark(0), mean[1], worst[1], mark(1), row.mean,
        row.worst, steps, steps ? "SHORT" : "pass");
    json["rested"] = {{"mean", mean[0]}, {"worst", count ? worst[0] : 0}, {"mark", mark(0)}};
    json["in_a_row"] = {{"mean", mean[1]}, {"worst", count ? worst[1] : 0}, {"mark", mark(1)}};
    json["target"] = {{"mean", row.mean}, {"worst", row.worst}};
    json["slower_than_more"] = steps;
    return json;
  }

  const Settings& settings_;
  const Device& device_;
  Options options_;
  std::optional<Engine> engine_;
  std::optional<Cuda> cuda_;
  std::unique_ptr<CublasLt> library_;
  Json profiled_ = Json::array();  // in the order of launches
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

Json every_m(const Device& device, const Settings& settings) { return EveryM(device, settings).run(); }

}  // namespace tilewright::bench
