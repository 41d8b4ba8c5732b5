// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "templates/common/family_of.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/loss_scale/cuda/plan.cuh"
#include "templates/operations/loss_scale/loss_scale.h"

namespace tilewright::loss_scale {
namespace {

using Knobs = tw::loss_scale::Knobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::threads>("threads"), knob<&Knobs::loads>("loads"),
                                  knob<&Knobs::persistent>("persistent")};
const KnobTable<Knobs> kTable{"tw::loss_scale::Knobs", kKnobs, {}};

double elements(const Unscale& u) { return static_cast<double>(u.pieces) * static_cast<double>(u.elements); }

class Vectors final : public FamilyOf<Unscale> {
 public:
  Vectors() : FamilyOf("loss_scale") {}
  std::string_view name() const override { return "vectors"; }
  std::string_view title() const override { return "16-byte accesses, blocks take pieces in turns"; }

 protected:
  Text text(const Unscale& u, const Candidate& candidate, const Arch&) const override {
    return {.plan_type = fmt::format("tw::loss_scale::Vectors<{}, kKnobs>", format_type(u.x)),
            .formats = {u.x},
            .prelude = kTable.text(kTable.knobs(candidate))};
  }
  void costs(const Unscale& u, const Candidate& candidate, const Arch&, Traits& t) const override {
    const Knobs k = kTable.knobs(candidate);
    t.registers = 32 + 6 * k.loads;
    t.bytes_in_flight = 16 * k.loads;
    // A product, a look, and for 16 bits taking it out of its word and back.
    t.alu_ops = elements(u) * (fast_path(u.x).element_bytes == 2 ? 4.0 : 2.0);
    t.later_wave_cost = k.persistent ? 0.1 : 0.4;  // a loop's turn, or a block's start
  }
  std::vector<Candidate> list(const Unscale&) const override {
    std::vector<Candidate> all;
    for (const bool persistent : {true, false})
      for (const int threads : {256, 512, 128})
        for (const int loads : {4, 2, 8})
          all.push_back(kTable.candidate(name(), {.threads = threads, .loads = loads, .persistent = persistent}));
    return all;
  }
  LaunchPlan plan(const Unscale&, const Candidate& candidate, const Arch& arch) const override {
    const Knobs k = kTable.knobs(candidate);
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

 protected:
  Text text(const Unscale& u, const Candidate&, const Arch&) const override {
    return {.plan_type = fmt::format("tw::loss_scale::Reference<{}>", format_type(u.x)), .formats = {u.x}};
  }
  void costs(const Unscale& u, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 40;
    t.bytes_in_flight = 4;
    t.alu_ops = elements(u) * 60;
  }
  LaunchPlan plan(const Unscale&, const Candidate&, const Arch&) const override {
    return {.x = {}, .y = {}, .z = {}, .threads = 32};
  }
};

class OneStep final : public FamilyOf<UpdateScale> {
 public:
  OneStep() : FamilyOf("loss_scale") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one thread"; }

 protected:
  Text text(const UpdateScale&, const Candidate&, const Arch&) const override {
    return {.plan_type = "tw::update_scale::Reference", .formats = {}, .space = "tw::update_scale"};
  }
  void costs(const UpdateScale&, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 40;
    t.bytes_in_flight = 4;
  }
  LaunchPlan plan(const UpdateScale&, const Candidate&, const Arch&) const override {
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
const Family& one_step() {
  static const OneStep family;
  return family;
}

}  // namespace tilewright::loss_scale
