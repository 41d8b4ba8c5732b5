// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "templates/common/family_of.h"
#include "templates/common/run_grid.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/amax/amax.h"
#include "templates/operations/amax/cuda/plan.cuh"

namespace tilewright::amax {
namespace {

using Knobs = tw::amax::Knobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::threads>("threads"), knob<&Knobs::loads>("loads")};
const KnobTable<Knobs> kTable{"tw::amax::Knobs", kKnobs, {}};

double elements(const Amax& a) { return static_cast<double>(a.rows) * static_cast<double>(a.cols); }

class Vectors final : public FamilyOf<Amax> {
 public:
  Vectors() : FamilyOf("amax") {}
  std::string_view name() const override { return "vectors"; }
  std::string_view title() const override {
    return "16-byte accesses, blocks in turns, one word that takes their maxima";
  }

 protected:
  Text text(const Amax& a, const Candidate& candidate, const Arch&) const override {
    return {.plan_type = fmt::format("tw::amax::Vectors<{}, kKnobs>", format_type(a.x)),
            .formats = {a.x},
            .prelude = kTable.text(kTable.knobs(candidate)),
            .bound_registers = true};
  }
  void costs(const Amax& a, const Candidate& candidate, const Arch&, Traits& t) const override {
    const Knobs k = kTable.knobs(candidate);
    t.registers = 20 + 4 * k.loads;
    t.bytes_in_flight = 16 * k.loads;
    // An element of 16 bits is taken out of its word besides.
    t.alu_ops = elements(a) * (fast_path(a.x).element_bytes == 2 ? 2.5 : 2.0);
    t.later_wave_cost = 0.1;  // a loop's turn
  }
  std::vector<Candidate> list(const Amax&) const override {
    std::vector<Candidate> all;
    for (const int threads : {256, 512, 128})
      for (const int loads : {4, 8, 2}) all.push_back(kTable.candidate(name(), {.threads = threads, .loads = loads}));
    return all;
  }
  LaunchPlan plan(const Amax& a, const Candidate& candidate, const Arch& arch) const override {
    const Knobs k = kTable.knobs(candidate);
    const std::int64_t tile = std::int64_t{k.tile()} * 16 / fast_path(a.x).element_bytes;
    LaunchPlan p{
        .x = run_grid(tile, a.rows, a.cols), .y = {}, .z = {}, .threads = static_cast<std::uint32_t>(k.threads)};
    p.persistent = static_cast<std::uint32_t>(arch.threads_per_sm / k.threads);
    return p;
  }
};

class Reference final : public FamilyOf<Amax> {
 public:
  Reference() : FamilyOf("amax") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one warp, by the format's scalar codec"; }

 protected:
  Text text(const Amax& a, const Candidate&, const Arch&) const override {
    return {.plan_type = fmt::format("tw::amax::Reference<{}>", format_type(a.x)), .formats = {a.x}};
  }
  void costs(const Amax& a, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 40;
    t.bytes_in_flight = 4;
    t.alu_ops = elements(a) * 60;
  }
  LaunchPlan plan(const Amax&, const Candidate&, const Arch&) const override {
    return {.x = {}, .y = {}, .z = {}, .threads = 32};
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
