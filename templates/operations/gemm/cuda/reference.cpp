// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::gemm {
namespace {

constexpr int kThreads = 128, kRows = 4;

// Of groups, a block for every row: the host does not see how many blocks of rows each has, but none is empty.
LaunchPlan grid(const Gemm& g) {
  return {.x = {static_cast<std::uint32_t>(std::max(g.groups, 1)), g.groups ? 1u : kRows, kThreads},
          .y = {},
          .z = {},
          .threads = kThreads};
}

class Reference final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override {
    return "any pair of formats, double accumulation; correctness before speed";
  }
  std::string why_not(const Problem& problem, const Arch&) const override {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "the problem is not a gemm";
    if (g->packing == Packing::panels) return "w is packed in panels, for CPUs";
    const LaunchPlan plan = grid(*g);
    if (launchable(plan, g->m, g->n)) return {};
    return fmt::format("m={} n={}{} needs {} blocks of {} x {} results, and a launch has at most {}", g->m, g->n,
                       g->groups ? fmt::format(" groups={}", g->groups) : "", plan.x.blocks(g->m, g->n), kRows,
                       kThreads, kMostBlocks);
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return {{"reference", {{"oracle", 0}}}};
  }
  // The oracle is never a candidate to win, but may be asked for by name.
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& c) const override {
    if (c == Candidate{"reference", {{"oracle", 1}}}) return why_not(problem, arch);
    return EnumeratedFamily::illegal(problem, arch, c);
  }
  Source source(const Problem& problem, const Arch&, const Candidate& c) const override {
    const Gemm& g = *problem.as<Gemm>();
    Specialization s;
    s.name = "gemm/reference";
    s.includes = includes_for(g, "operations/gemm/cuda/reference.cuh");
    s.plan_type = fmt::format("tw::gemm::Reference<{}, {}, {}, {}{}{}>", x_type(g), format_type(g.w), epilogue_type(g),
                              c.at("oracle") ? "true" : "false",
                              g.packing == Packing::tiles
                                  ? fmt::format(", tw::tile_element<{}, {}>", format_type(g.x), format_type(g.w))
                              : g.groups ? ", void"
                                         : "",
                              g.groups ? ", true" : "");
    s.space = "tw::gemm";
    s.plan = grid(g);
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    const Gemm& g = *problem.as<Gemm>();
    Traits t;
    t.tile_rows = kRows, t.tile_cols = kThreads, t.threads = kThreads, t.registers = 56;
    const double m = static_cast<double>(g.x_rows()), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
    t.blocks = std::max(1.0, m / kRows) * std::max(1.0, n / kThreads);
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = t.unique_bytes * std::max(1.0, m / kRows);
    t.bytes_in_flight = 4;
    t.alu_ops = m * n * k * 30;
    return t;
  }
};

}  // namespace

const Family& reference() {
  static const Reference family;
  return family;
}

}  // namespace tilewright::gemm
