// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "templates/common/knobs.h"
#include "templates/common/specialize.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::conv {
namespace {

constexpr int kThreads = 128, kPixels = 8, kChannels = kThreads / kPixels;

LaunchPlan grid() { return {.x = {1, kPixels, kChannels}, .y = {}, .z = {}, .threads = kThreads}; }

class Reference final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "any convolution, double accumulation; correctness before speed"; }
  std::string why_not(const Problem& problem, const Arch&) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "the problem is not a conv";
    if (std::string why = in_panels(*c); !why.empty()) return why;
    const Gemm g = as_gemm(*c);
    if (gemm::launchable(grid(), g.m, g.n)) return {};
    return fmt::format("y of {} pixels and {} channels needs {} blocks of {} x {} results, and a launch has at most {}",
                       g.m, g.n, grid().x.blocks(g.m, g.n), kPixels, kChannels, gemm::kMostBlocks);
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
    const Gemm g = as_gemm(*problem.as<Conv>());
    Specialization s;
    s.name = "conv/reference";
    s.includes = gemm::includes_for(g, "operations/conv/cuda/reference.cuh");
    const std::string x = format_type(g.x), w = format_type(g.w);
    s.plan_type = fmt::format("tw::conv::Reference<{}, {}, {}, {}{}>", x, w, gemm::epilogue_type(g),
                              c.at("oracle") ? "true" : "false",
                              g.packing == Packing::tiles ? fmt::format(", tw::tile_element<{}, {}>", x, w) : "");
    s.space = "tw::conv";
    s.plan = grid();
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    const Gemm g = as_gemm(*problem.as<Conv>());
    Traits t;
    t.tile_rows = kPixels, t.tile_cols = kChannels, t.threads = kThreads, t.registers = 64;
    const double m = static_cast<double>(g.m), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
    t.blocks = std::max(1.0, m / kPixels) * std::max(1.0, n / kChannels);
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = t.unique_bytes * std::max(1.0, n / kChannels);
    t.bytes_in_flight = 4;
    t.alu_ops = m * n * k * 40;
    return t;
  }
};

}  // namespace

const Family& reference() {
  static const Reference family;
  return family;
}

}  // namespace tilewright::conv
