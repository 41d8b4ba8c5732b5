// SPDX-License-Identifier: Apache-2.0
// Kernels against the read bandwidth and a rate of products; the ceilings are measured in the same run.
#include <fmt/format.h>

#include "bench/bench.h"

namespace tilewright::bench {
namespace {

struct Row {
  std::string problem;
  double target;  // of the ceiling, or TFLOP/s
};

}  // namespace

Json kernels(const Device& device) {
  Options options = Options::from_env();
  options.cache = ":memory:";
  Engine engine(options);
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

}  // namespace tilewright::bench
