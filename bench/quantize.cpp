// SPDX-License-Identifier: Apache-2.0
// `bench quantize`: casts and what is fused with them, as shares of the rates at which this device copies and reads.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench/bench.h"
#include "bench/rivals/cuda.h"

namespace tilewright::bench {
namespace {

enum class Ceiling { copy, read };

struct Row {
  std::string problem;
  double target = 0;  // share of the ceiling, at least; 0: none, and only measured where --rows asks for it
  Ceiling ceiling = Ceiling::copy;
};

constexpr double kShare = 0.85;
constexpr const char* kFloats[] = {"bf16", "f16", "f32"};

// 256 MiB of the plain side, in the rows of the largest bucket: measuring takes no more.
std::int64_t cols(std::string_view plain) { return plain == "f32" ? 16384 : 32768; }

std::vector<Row> rows() {
  std::vector<Row> all;
  const auto both_ways = [&](std::string_view coded, const char* plain, double target) {
    all.push_back({fmt::format("cast x={} y={} rows=4096 cols={}", plain, coded, cols(plain)), target});
    all.push_back({fmt::format("cast x={} y={} rows=4096 cols={}", coded, plain, cols(plain)), target});
  };
  const std::vector<std::string_view> judged = {"e4m3_row", "e4m3",  "int8_row", "int4_row", "int4_g128",
                                                "nvfp4",    "mxfp8", "q8_1",     "q4_0"};
  for (const std::string_view coded : judged)
    for (const char* plain : kFloats) both_ways(coded, plain, kShare);
  // (Of more rows than the largest bucket has, times would be of those.)
  for (const char* y : {"e4m3_row", "int8_row", "nvfp4", "mxfp8", "q8_1", "bf16"}) {
    all.push_back({fmt::format("fused_cast x=bf16 y={} rows=4096 cols=8192 residual=add norm=rms weight=bf16", y),
                   y == std::string_view("bf16") ? 0 : kShare});
    all.push_back({fmt::format("fused_cast x=bf16 y={} rows=4096 cols=8192 norm=rms weight=bf16", y), kShare});
    all.push_back({fmt::format("fused_cast x=bf16 y={} rows=4096 cols=14336 act=silu gate=first", y), kShare});
    all.push_back({fmt::format("fused_cast x=bf16 y={} rows=4096 cols=8192 bias=bf16 act=gelu", y), 0});
  }
  for (const char* plain : kFloats) {
    all.push_back({fmt::format("amax x={} rows=4096 cols={}", plain, cols(plain)), kShare, Ceiling::read});
    // A thousand tensors of 131072 elements.
    all.push_back({fmt::format("unscale x={} pieces=4096 elements=32768", plain), kShare});
  }

  for (const Format f : Format::all()) {
    const auto shares = [](const StreamSpec& s) { return s.rows > 1; };
    const auto streams = f.info().streams;
    if (std::any_of(streams.begin(), streams.end(), shares)) continue;  // rows that share a scale: no cast takes them
    if (std::find(judged.begin(), judged.end(), f.name()) != judged.end()) continue;
    for (const char* plain : kFloats)
      if (f.name() != plain) both_ways(f.name(), plain, 0);
  }
  for (const char* y : {"e4m3_row", "e4m3", "int8_row", "int4_g32", "nvfp4", "mxfp8"})
    all.push_back({fmt::format("cast x=bf16 y={} rows=4096 cols=32768 rounding=stochastic", y)});
  for (const char* plain : kFloats) {
    for (const int block : {16, 256})
      all.push_back(
          {fmt::format("fp4_fake_quant x={0} y={0} rows=4096 cols={1} block={2}", plain, cols(plain), block)});
    all.push_back({fmt::format("fp4_fake_quant x={0} y={0} rows=4096 cols={1} block=128", plain, cols(plain) - 1)});
    for (const char* more : {"", " scope=row", " grad=straight", " grad=learned", " scope=row grad=learned"})
      all.push_back({fmt::format("fake_quant x={} rows=4096 cols={} qmin=-8 qmax=7{}", plain, cols(plain), more)});
  }
  return all;
}

// One cold launch of what the cache has for a problem, for a profiler (bench/counters.sh).
Json profile(Engine& engine, const Cuda& cuda, const Device& device, const Problem& problem) {
  const Kernel kernel = engine.prepare(problem, device);
  const Task task = engine.task(problem, device.arch());
  const Rotation rotation(cuda, device, pieces_of(task), kColdBytes);
  const auto launch = [&](int copy) {
    const std::vector<void*> pointers = rotation.pointers(copy % rotation.copies());
    kernel.launch(cuda.stream(), task.arguments(pointers, task.rows), task.rows, task.cols);
  };
  launch(0);
  cuda.profiled([&] { launch(1); });
  return {{"problem", problem.text()}, {"rival", ""}, {"choice", kernel.candidate(task.rows).text()}};
}

}  // namespace

Json quantizing(const Device& device, const Settings& settings) {
  Options options = Options::from_env();
  options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
  Engine engine(options);
  if (settings.profile) {
    const Cuda cuda(device, options.driver);
    Json profiled = Json::array();
    for (const Row& row : rows())
      if (row.problem.find(settings.rows) != row.problem.npos)
        profiled.push_back(profile(engine, cuda, device, Problem::parse(row.problem)));
    return {{"profiled", profiled}};
  }
  const double copy = copy_ceiling(engine, device), read = read_ceiling(engine, device);
  fmt::print("ceilings: copy {:.2f} TB/s (read + write), read {:.2f}\n", copy, read);
  Json out = {{"copy_ceiling_tbps", copy}, {"read_ceiling_tbps", read}, {"rows", Json::array()}};
  Table table({"problem", "us", "TB/s", "of ceiling", "target", "", "choice"});
  const auto began = std::chrono::steady_clock::now();
  for (const Row& row : rows()) {
    if (settings.rows.empty() ? row.target == 0 : row.problem.find(settings.rows) == row.problem.npos) continue;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > settings.seconds) {
      if (row.target > 0) table.row({row.problem, "", "", "", "", "SHORT: out of time", ""});
      out["rows"].push_back({{"problem", row.problem}, {"note", "not run: out of time"}});
      continue;
    }
    const Problem problem = Problem::parse(row.problem);
    TunePolicy policy;
    policy.patience = 0;
    policy.budget_seconds = settings.tune_seconds;
    policy.max_candidates = settings.candidates;
    const Choice choice = engine.tune(problem, device, policy).choice;
    const double tbps = problem.min_bytes() / choice.microseconds * 1e-6;
    const double share = tbps / (row.ceiling == Ceiling::read ? read : copy);
    const std::string mark = row.target == 0 ? "" : share >= row.target ? "pass" : "SHORT";
    const std::string asked = row.target == 0 ? "" : fmt::format(">= {:.0f} %", 100 * row.target);
    table.row({row.problem, fmt::format("{:.1f}", choice.microseconds), fmt::format("{:.2f}", tbps),
               fmt::format("{:.0f} %", 100 * share), asked, mark, choice.candidate.text()});
    fmt::print("{}: {:.1f} us, {:.0f} % {}\n", row.problem, choice.microseconds, 100 * share, mark);
    std::fflush(stdout);
    out["rows"].push_back({{"problem", row.problem},
                           {"us", choice.microseconds},
                           {"tbps", tbps},
                           {"ceiling", row.ceiling == Ceiling::read ? "read" : "copy"},
                           {"of_ceiling", share},
                           {"target", row.target},
                           {"mark", mark},
                           {"choice", choice.candidate.text()}});
  }
  fmt::print("{}", table.text());
  return out;
}

}  // namespace tilewright::bench
