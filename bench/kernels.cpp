// SPDX-License-Identifier: Apache-2.0
// Kernels against the read bandwidth and a rate of products; the ceilings are measured in the same run.
#include <fmt/format.h>

#include <algorithm>

#include "bench/bench.h"

namespace tilewright::bench {
namespace {

Engine fresh() {
  Options options = Options::from_env();
  options.cache = ":memory:";
  return Engine(options);
}

struct Row {
  std::string problem;
  double target;  // of the ceiling, or TFLOP/s
};

}  // namespace

Json kernels(const Device& device) {
  Engine engine = fresh();
  const double ceiling = read_ceiling(engine, device);
  fmt::print("read ceiling {:.2f} TB/s\n", ceiling);
  Json out;
  out["read_ceiling_tbps"] = ceiling;
  const std::vector<Row> rows = {{"gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=14336", 0.55},
                                 {"gemm x=f16 w=f16 y=f16 m=1 n=4096 k=14336", 0.55},
                                 {"gemm x=f16 w=q4_0 y=f16 m=1 n=4096 k=14336", 0},
                                 {"gemm x=q8_1 w=q4_k y=f32 m=1 n=4096 k=14336", 0},
                                 {"gemm x=q8_1 w=q8_0 y=f32 m=1 n=4096 k=14336", 0},
                                 {"gemm x=f16 w=nvfp4 y=f16 m=1 n=4096 k=14336 global=mul", 0},
                                 {"gemm x=q8_1 w=q4_0 y=f32 m=8 n=4096 k=14336", 0},
                                 {"gemm x=q8_1 w=q4_0 y=f32 m=16 n=4096 k=14336", 0},
                                 {"gemm x=bf16 w=bf16 y=bf16 m=4096 n=4096 k=4096", 300},
                                 {"gemm x=f16 w=f16 y=f16 m=4096 n=4096 k=4096", 0},
                                 {"gemm x=q8_1 w=q4_0 y=f32 m=1024 n=4096 k=14336", 0},
                                 {"gemm x=f16 w=q4_0 y=f16 m=1024 n=4096 k=14336", 0},
                                 {"gemm x=bf16 w=q4_k y=bf16 m=1024 n=4096 k=14336", 0}};
  Table table({"problem", "us", "TB/s", "of ceiling", "TFLOP/s", "target", "", "choice"});
  for (const Row& row : rows) {
    const Problem problem = Problem::parse(row.problem);
    TunePolicy policy;
    policy.max_candidates = 32;
    policy.patience = 0;
    const TuneReport report = engine.tune(problem, device, policy);
    const double us = report.choice.microseconds;
    const double tbps = problem.min_bytes() / us * 1e-6, tf = problem.ops() / us * 1e-6;
    const double reached = row.target > 1 ? tf : tbps / ceiling;
    const std::string mark = row.target == 0 ? "" : reached >= row.target ? "pass" : "short";
    table.row({row.problem, fmt::format("{:.1f}", us), fmt::format("{:.2f}", tbps),
               fmt::format("{:.0f} %", 100 * tbps / ceiling), fmt::format("{:.1f}", tf),
               row.target == 0  ? ""
               : row.target > 1 ? fmt::format(">= {:.0f} TF", row.target)
                                : fmt::format(">= {:.0f} %", 100 * row.target),
               mark, report.choice.candidate.text()});
    Json outcomes = Json::array();
    for (const Outcome& o : report.outcomes)
      outcomes.push_back({{"candidate", o.candidate.text()},
                          {"kind", to_string(o.kind)},
                          {"us", o.microseconds},
                          {"detail", o.detail},
                          {"registers", o.resources.registers}});
    out["rows"].push_back({{"problem", row.problem},
                           {"us", us},
                           {"tbps", tbps},
                           {"of_ceiling", tbps / ceiling},
                           {"tflops", tf},
                           {"target", row.target},
                           {"mark", mark},
                           {"choice", report.choice.candidate.text()},
                           {"first", report.first.text()},
                           {"outcomes", outcomes}});
  }
  fmt::print("{}", table.text());
  return out;
}

Json casts(const Device& device, const Settings& settings) {
  Engine engine = fresh();
  const double ceiling = copy_ceiling(engine, device);
  fmt::print("copy ceiling {:.2f} TB/s (read + write)\n", ceiling);
  Json out;
  out["copy_ceiling_tbps"] = ceiling;
  Table table({"cast of 256 MB", "us", "TB/s", "of ceiling", "target", "", "choice"});
  const auto measure = [&](const std::string& text) {
    if (text.find(settings.rows) == text.npos) return;
    const Problem problem = Problem::parse(text);
    TunePolicy policy;
    policy.patience = 0;
    const TuneReport report = engine.tune(problem, device, policy);
    const double us = report.choice.microseconds, tbps = problem.min_bytes() / us * 1e-6;
    const double target = problem.as<Unscale>() ? 0.85 : 0.6;
    const std::string mark = tbps >= target * ceiling ? "pass" : "short";
    table.row({text, fmt::format("{:.1f}", us), fmt::format("{:.2f}", tbps),
               fmt::format("{:.0f} %", 100 * tbps / ceiling), fmt::format(">= {:.0f} %", 100 * target), mark,
               report.choice.candidate.text()});
    out["rows"].push_back({{"problem", text},
                           {"us", us},
                           {"tbps", tbps},
                           {"of_ceiling", tbps / ceiling},
                           {"mark", mark},
                           {"choice", report.choice.candidate.text()}});
  };
  // 256 MiB of the plain side, in the rows of the largest bucket: measuring takes no more.
  const auto cols = [](std::string_view plain) { return plain == "f32" ? 16384 : 32768; };
  for (Format f : Format::all()) {
    const auto shares = [](const StreamSpec& s) { return s.rows > 1; };
    const auto streams = f.info().streams;
    if (std::any_of(streams.begin(), streams.end(), shares)) continue;  // rows that share a scale: no cast takes them
    for (const char* plain : {"f32", "f16", "bf16"}) {
      if (f.name() == plain) continue;
      measure(fmt::format("cast x={} y={} rows=4096 cols={}", plain, f.name(), cols(plain)));
      measure(fmt::format("cast x={} y={} rows=4096 cols={}", f.name(), plain, cols(plain)));
    }
  }
  for (const char* y : {"e4m3_row", "e4m3", "int8_row", "int4_g32", "nvfp4", "mxfp8"})
    measure(fmt::format("cast x=bf16 y={} rows=4096 cols=32768 rounding=stochastic", y));
  // What is fused. (Of more rows than the largest bucket has, times would be of those.)
  for (const char* y : {"e4m3_row", "int8_row", "nvfp4", "mxfp8", "q8_1", "bf16"}) {
    measure(fmt::format("fused_cast x=bf16 y={} rows=4096 cols=8192 residual=add norm=rms weight=bf16", y));
    measure(fmt::format("fused_cast x=bf16 y={} rows=4096 cols=14336 act=silu gate=first", y));
    measure(fmt::format("fused_cast x=bf16 y={} rows=4096 cols=8192 bias=bf16 act=gelu", y));
  }
  for (const char* plain : {"f32", "f16", "bf16"}) {
    measure(fmt::format("amax x={} rows=4096 cols={}", plain, cols(plain)));
    for (const int block : {16, 256})
      measure(fmt::format("fp4_fake_quant x={0} y={0} rows=4096 cols={1} block={2}", plain, cols(plain), block));
    measure(fmt::format("dynamic_block_quantize x={0} y={0} rows=4096 cols={1} block=128", plain, cols(plain) - 1));
    for (const char* more : {"", " scope=row", " grad=straight", " grad=learned", " scope=row grad=learned"})
      measure(fmt::format("fake_quant x={} rows=4096 cols={} qmin=-8 qmax=7{}", plain, cols(plain), more));
    measure(fmt::format("unscale x={} pieces=4096 elements=32768", plain));  // a thousand tensors of 131072 elements
  }
  fmt::print("{}", table.text());
  return out;
}

}  // namespace tilewright::bench
