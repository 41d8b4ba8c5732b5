// SPDX-License-Identifier: Apache-2.0
// `bench grouped`: one grouped launch against the same work as a cuBLASLt call for each group, captured in one graph so
// that the host's part does not count, and against one cuBLASLt product of as many rows by a single matrix, which reads
// fewer weights and has no ragged tiles. All rotate over more weights than the L2 holds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>

#include "bench/bench.h"
#include "bench/rivals/cublaslt.h"
#include "bench/rivals/cuda.h"

namespace tilewright::bench {
namespace {

constexpr double kOfSeparate = 1.5, kOfDense = 0.85;  // what is asked for

struct Formats {
  const char *text, *rival;
};
constexpr Formats kFormats[] = {{"x=bf16 w=bf16 y=bf16", "bf16"},
                                {"x=e4m3_row w=e4m3_row y=bf16 accum=fast", "fp8+rows"},
                                {"x=e4m3_row w=e4m3_row y=bf16", "fp8+rows"}};

// m: rows of a group on average.
struct Shape {
  int groups;
  std::int64_t m, n, k;
};
constexpr Shape kShapes[] = {{8, 1024, 4096, 4096}, {8, 128, 4096, 4096},  {32, 256, 4096, 2048}, {64, 128, 2048, 2048},
                             {64, 16, 2048, 2048},  {128, 64, 2048, 2048}, {256, 32, 2048, 2048}, {256, 4, 2048, 2048}};

// Skewed, an eighth of the groups has four times the average, an eighth twice, a quarter nothing, and half of them
// half.
std::vector<std::int64_t> counts_of(const Shape& shape, bool skewed) {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < shape.groups; ++i) {
    const int kind = i * 3 % 8;
    counts.push_back(!skewed     ? shape.m
                     : kind == 0 ? 4 * shape.m
                     : kind == 1 ? 2 * shape.m
                     : kind < 4  ? 0
                                 : shape.m / 2);
  }
  return counts;
}

class GroupedBench {
 public:
  GroupedBench(const Device& device, const Settings& settings)
      : settings_(settings), options_(options_of(settings)), engine_(options_), device_(device) {}

  Json run() {
    cuda_ = std::make_unique<Cuda>(device_, options_.driver);
    std::string why;
    library_ = CublasLt::open(device_, options_.nvrtc, why);
    if (!library_) fmt::print("cuBLASLt: {}. Ratios have no rival.\n", why);
    Table table({"problem", "rows", "us", "TF", "TB/s", "separate us", "", "dense us", "", "choice"});
    Json json = Json::array();
    const auto began = std::chrono::steady_clock::now();
    for (const Formats& formats : kFormats)
      for (const Shape& shape : kShapes) {
        const std::string text =
            fmt::format("gemm {} m={} n={} k={} groups={}", formats.text, shape.m, shape.n, shape.k, shape.groups);
        if (!settings_.rows.empty() && text.find(settings_.rows) == text.npos) continue;
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > settings_.seconds) {
          fmt::print("{}: not run: out of time\n", text);
          json.push_back({{"problem", text}, {"note", "not run: out of time"}});
          continue;
        }
        try {
          measure(Problem::parse(text), formats, shape, table, json);
        } catch (const Error& e) {
          device_.synchronize();  // throws if the device is lost
          fmt::print("{}: {}\n", text, e.what());
          json.push_back({{"problem", text}, {"note", e.what()}});
        }
        std::fflush(stdout);
      }
    fmt::print("\n{}\nasked for: {}x of separate calls, {}x of one dense product\n", table.text(), kOfSeparate,
               kOfDense);
    return {{"cublaslt", library_ ? library_->version() : why}, {"rows", json}};
  }

 private:
  static Options options_of(const Settings& settings) {
    Options options = Options::from_env();
    options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
    return options;
  }

  // The fastest variant's launches of one product.
  struct Product {
    std::unique_ptr<Rival> rival;
    std::function<void(int)> launch;
    double us = 0;
  };
  Product product(const Formats& formats, std::int64_t m, const Shape& shape) {
    Product p;
    p.rival =
        std::make_unique<Rival>(*library_, *cuda_, device_, engine_, formats.rival, m, shape.n, shape.k, kColdBytes);
    for (RivalTime& t : p.rival->times())
      if (const double us = t.replay.time(); !p.launch || us < p.us) p.launch = t.launch, p.us = us;
    if (!p.launch) throw Error(ErrorCode::unsupported, "rival", formats.rival, "must be a variant that cuBLASLt has");
    return p;
  }

  struct Timed {
    std::optional<Replay> replay;
    std::vector<double> samples;
    double us() const { return samples.empty() ? 0 : median(samples); }
  };

  void measure(const Problem& problem, const Formats& formats, const Shape& shape, Table& table, Json& json) {
    TunePolicy policy;
    policy.max_candidates = settings_.candidates;
    policy.budget_seconds = settings_.tune_seconds;
    const TuneReport report = engine_.tune(problem, device_, policy);
    Task task = engine_.task(problem, device_.arch());
    task.candidates = {report.choice.candidate};
    const Kernel kernel = engine_.prepare(task, device_);
    const Rotation rotation(*cuda_, device_, pieces_of(task), kColdBytes);

    Product dense;
    if (library_) dense = product(formats, shape.m * shape.groups, shape);
    for (const bool skewed : {false, true}) {
      const std::vector<std::int64_t> counts = counts_of(shape, skewed);
      std::vector<std::int32_t> offsets{0};
      for (const std::int64_t count : counts) offsets.push_back(offsets.back() + static_cast<std::int32_t>(count));
      Memory on_device(device_, offsets.size() * 4);
      on_device.upload(std::as_bytes(std::span(offsets)));
      const auto ours = [&](int i) {
        const std::vector<std::byte> bytes = task.arguments(rotation.pointers(i % rotation.copies()), problem.rows());
        GemmArgs args;
        std::memcpy(&args, bytes.data(), sizeof args);
        args.m = offsets.back();
        args.group_rows = static_cast<const std::int32_t*>(on_device.data());
        kernel.launch(cuda_->stream(), {reinterpret_cast<const std::byte*>(&args), sizeof args}, problem.rows(),
                      problem.cols());
      };
      Timed grouped, separate, one;
      grouped.replay.emplace(replay(rotation.copies(), ours));
      std::map<std::int64_t, Product> products;
      if (library_) {
        for (const std::int64_t count : counts)
          if (count > 0 && !products.count(count)) products.emplace(count, product(formats, count, shape));
        // Every group's call reads other weights.
        separate.replay.emplace(replay(2, [&](int i) {
          for (int g = 0; g < shape.groups; ++g)
            if (const std::int64_t count = counts[static_cast<std::size_t>(g)])
              products.at(count).launch(i * shape.groups + g);
        }));
        one.replay.emplace(replay(8, dense.launch));
      }
      for (int round = -kWarmRounds; round < settings_.rounds; ++round)
        for (Timed* t : {&grouped, &separate, &one})
          if (t->replay)
            if (const double us = t->replay->time(); round >= 0) t->samples.push_back(us);
      report_row(problem, skewed, report, offsets.back(), grouped.us(), separate.us(), one.us(), table, json);
    }
  }

  // Whole walks over `copies`, for about two milliseconds.
  Replay replay(int copies, const std::function<void(int)>& launch) {
    launch(0);
    cuda_->microseconds([&] { launch(1); });
    const double once = std::max(1.0, cuda_->microseconds([&] { launch(copies - 1); }));
    const int walks = std::clamp(static_cast<int>(2000 / (once * copies)), 1, std::max(1, 1024 / copies));
    return Replay(*cuda_, walks * copies, launch);
  }

  void report_row(const Problem& problem, bool skewed, const TuneReport& report, std::int64_t rows, double us,
                  double separate, double dense, Table& table, Json& json) {
    const Gemm& g = *problem.as<Gemm>();
    const double ops = 2.0 * static_cast<double>(rows) * static_cast<double>(g.n) * static_cast<double>(g.k);
    const double bytes = problem.min_bytes();
    const auto ratio = [&](double rival, double asked) {
      return rival == 0 ? std::string() : fmt::format("{:.2f}x{}", rival / us, rival / us >= asked ? "" : " SHORT");
    };
    table.row({problem.text(), skewed ? "skewed" : "balanced", fmt::format("{:.1f}", us),
               fmt::format("{:.0f}", ops / us * 1e-6), fmt::format("{:.2f}", bytes / us * 1e-6),
               fmt::format("{:.1f}", separate), ratio(separate, kOfSeparate), fmt::format("{:.1f}", dense),
               ratio(dense, kOfDense), report.choice.candidate.text()});
    fmt::print("{} {}: {:.1f} us, separate {:.1f} {}, dense {:.1f} {}\n", problem.text(),
               skewed ? "skewed" : "balanced", us, separate, ratio(separate, kOfSeparate), dense,
               ratio(dense, kOfDense));
    Json outcomes = Json::array();
    for (const Outcome& o : report.outcomes)
      outcomes.push_back({{"candidate", o.candidate.text()},
                          {"kind", to_string(o.kind)},
                          {"us", o.microseconds},
                          {"detail", o.detail}});
    json.push_back({{"problem", problem.text()},
                    {"rows", skewed ? "skewed" : "balanced"},
                    {"us", us},
                    {"separate_us", separate},
                    {"dense_us", dense},
                    {"tflops", ops / us * 1e-6},
                    {"choice", report.choice.candidate.text()},
                    {"first", report.first.text()},
                    {"outcomes", outcomes}});
  }

  const Settings& settings_;
  const Options options_;
  Engine engine_;
  const Device& device_;
  std::unique_ptr<Cuda> cuda_;
  std::unique_ptr<CublasLt> library_;
};

}  // namespace

Json grouped(const Device& device, const Settings& settings) { return GroupedBench(device, settings).run(); }

}  // namespace tilewright::bench
