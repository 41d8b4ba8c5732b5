// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "templates/amax/amax.h"
#include "templates/amax/plan.cuh"
#include "templates/fast_path.h"
#include "templates/knobs.h"
#include "templates/run_grid.h"
#include "templates/specialize.h"

namespace tilewright::amax {
namespace {

using Knobs = tw::amax::Knobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::threads>("threads"), knob<&Knobs::loads>("loads")};
const KnobTable<Knobs> kTable{"tw::amax::Knobs", kKnobs, {}};

class AmaxFamily : public EnumeratedFamily {
 public:
  std::string_view op() const override { return Amax::kOperation; }
  std::string why_not(const Problem& problem, const Arch&) const override {
    return problem.as<Amax>() ? "" : fmt::format("not an {}", Amax::kOperation);
  }

 protected:
  static Specialization specialization(const Amax& a, const char* header, const LaunchPlan& plan) {
    Specialization s;
    s.name = fmt::format("amax/{}", header);
    s.includes = {fmt::format("amax/{}.cuh", header), fmt::format("formats/{}.cuh", a.x.name())};
    s.space = "tw::amax";
    s.plan = plan;
    return s;
  }
  static double elements(const Amax& a) { return static_cast<double>(a.rows) * static_cast<double>(a.cols); }
};

class Vectors final : public AmaxFamily {
 public:
  std::string_view name() const override { return "vectors"; }
  std::string_view title() const override {
    return "16-byte accesses, blocks in turns, one word that takes their maxima";
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    std::vector<Candidate> all;
    for (const int threads : {256, 512, 128})
      for (const int loads : {4, 8, 2}) all.push_back(kTable.candidate(name(), {.threads = threads, .loads = loads}));
    return all;
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Amax& a = *problem.as<Amax>();
    const Knobs k = kTable.knobs(candidate);
    Specialization s = specialization(a, "vectors", plan(a, k, arch));
    s.prelude = kTable.text(k);
    s.plan_type = fmt::format("tw::amax::Vectors<tw::fmt::{}, kKnobs>", a.x.name());
    s.blocks_per_sm = static_cast<int>(s.plan.persistent);
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Amax& a = *problem.as<Amax>();
    const Knobs k = kTable.knobs(candidate);
    const LaunchPlan p = plan(a, k, arch);
    Traits t;
    t.threads = k.threads;
    t.tile_rows = static_cast<int>(p.x.per_rows), t.tile_cols = static_cast<int>(p.x.per_cols);
    t.blocks = static_cast<double>(p.x.blocks(a.rows, a.cols));
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.registers = 20 + 4 * k.loads;
    t.bytes_in_flight = 16 * k.loads;
    // An element of 16 bits is taken out of its word besides.
    t.alu_ops = elements(a) * (fast_path(a.x).element_bytes == 2 ? 2.5 : 2.0);
    t.later_wave_cost = 0.1;  // a loop's turn
    return t;
  }

 private:
  static LaunchPlan plan(const Amax& a, const Knobs& k, const Arch& arch) {
    const std::int64_t tile = std::int64_t{k.tile()} * 16 / fast_path(a.x).element_bytes;
    LaunchPlan p{
        .x = run_grid(tile, a.rows, a.cols), .y = {}, .z = {}, .threads = static_cast<std::uint32_t>(k.threads)};
    p.persistent = static_cast<std::uint32_t>(arch.threads_per_sm / k.threads);
    return p;
  }
};

class Reference final : public AmaxFamily {
 public:
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one warp, by the format's scalar codec"; }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return {{"reference", {}}};
  }
  Source source(const Problem& problem, const Arch&, const Candidate&) const override {
    const Amax& a = *problem.as<Amax>();
    Specialization s = specialization(a, "reference", {.x = {}, .y = {}, .z = {}, .threads = 32});
    s.plan_type = fmt::format("tw::amax::Reference<tw::fmt::{}>", a.x.name());
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    const Amax& a = *problem.as<Amax>();
    Traits t;
    t.threads = 32, t.tile_rows = 1, t.tile_cols = 1, t.blocks = 1, t.registers = 40;
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.bytes_in_flight = 4;
    t.alu_ops = elements(a) * 60;
    return t;
  }
};

}  // namespace

const Family& vectors() {
  static const Vectors family;
  return family;
}
const Family& reference() {
  static const Reference family;
  return family;
}

}  // namespace tilewright::amax
