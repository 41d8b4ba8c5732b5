// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "templates/family_of.h"
#include "templates/fast_path.h"
#include "templates/loss_scale/loss_scale.h"
#include "templates/loss_scale/plan.cuh"

namespace tilewright::loss_scale {
namespace {

using Knobs = tw::loss_scale::Knobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::threads>("threads"), knob<&Knobs::loads>("loads"),
                                  knob<&Knobs::persistent>("persistent")};
const KnobTable<Knobs> kTable{"tw::loss_scale::Knobs", kKnobs, {}};

constexpr LaunchPlan kOneWarp{.x = {}, .y = {}, .z = {}, .threads = 32};

double elements(const Unscale& u) { return static_cast<double>(u.pieces) * static_cast<double>(u.elements); }

class Vectors final : public FamilyOf<Unscale> {
 public:
  Vectors() : FamilyOf("loss_scale") {}
  std::string_view name() const override { return "vectors"; }
  std::string_view title() const override { return "16-byte accesses, blocks take pieces in turns"; }

  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Unscale& u = *problem.as<Unscale>();
    const Knobs k = kTable.knobs(candidate);
    Specialization s = specialization(plan(k, arch), {u.x});
    s.prelude = kTable.text(k);
    s.plan_type = fmt::format("tw::loss_scale::Vectors<{}, kKnobs>", format_type(u.x));
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Unscale& u = *problem.as<Unscale>();
    const Knobs k = kTable.knobs(candidate);
    Traits t = base_traits(problem, plan(k, arch));
    t.registers = 32 + 6 * k.loads;
    t.bytes_in_flight = 16 * k.loads;
    // A product, a look, and for 16 bits taking it out of its word and back.
    t.alu_ops = elements(u) * (fast_path(u.x).element_bytes == 2 ? 4.0 : 2.0);
    t.later_wave_cost = k.persistent ? 0.1 : 0.4;  // a loop's turn, or a block's start
    return t;
  }

 protected:
  std::vector<Candidate> list(const Unscale&) const override {
    std::vector<Candidate> all;
    for (const bool persistent : {true, false})
      for (const int threads : {256, 512, 128})
        for (const int loads : {4, 2, 8})
          all.push_back(kTable.candidate(name(), {.threads = threads, .loads = loads, .persistent = persistent}));
    return all;
  }

 private:
  static LaunchPlan plan(const Knobs& k, const Arch& arch) {
    LaunchPlan p{.x = {1, 1, 0}, .y = {}, .z = {}, .threads = static_cast<std::uint32_t>(k.threads)};
    if (k.persistent) p.persistent = static_cast<std::uint32_t>(arch.threads_per_sm / k.threads);
    return p;
  }
};

class Reference final : public FamilyOf<Unscale> {
 public:
  Reference() : FamilyOf("loss_scale") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one warp, by the format's scalar codec"; }

  Source source(const Problem& problem, const Arch&, const Candidate&) const override {
    const Unscale& u = *problem.as<Unscale>();
    Specialization s = specialization(kOneWarp, {u.x});
    s.plan_type = fmt::format("tw::loss_scale::Reference<{}>", format_type(u.x));
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    Traits t = base_traits(problem, kOneWarp);
    t.registers = 40;
    t.bytes_in_flight = 4;
    t.alu_ops = elements(*problem.as<Unscale>()) * 60;
    return t;
  }
};

class OneStep final : public FamilyOf<UpdateScale> {
 public:
  OneStep() : FamilyOf("loss_scale") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one thread"; }

  Source source(const Problem&, const Arch&, const Candidate&) const override {
    Specialization s = specialization(kOneWarp, {});
    s.space = "tw::update_scale";
    s.plan_type = "tw::update_scale::Reference";
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    Traits t = base_traits(problem, kOneWarp);
    t.registers = 40;
    t.bytes_in_flight = 4;
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
const Family& one_step() {
  static const OneStep family;
  return family;
}

}  // namespace tilewright::loss_scale
