// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "templates/common/family_of.h"
#include "templates/common/run_grid.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/fake_quant/cuda/plan.cuh"
#include "templates/operations/fake_quant/fake_quant.h"

namespace tilewright::fake_quant {
namespace {

using Knobs = tw::fake_quant::Knobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::threads>("threads"), knob<&Knobs::loads>("loads")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::piece>("piece"), knob<&Knobs::by_row>("by_row"),
                                    knob<&Knobs::learned>("learned")};
const KnobTable<Knobs> kTable{"tw::fake_quant::Knobs", kKnobs, kDerived};

const char* grad_of(const FakeQuant& f) {
  return f.grad == FakeQuantGrad::none       ? "tw::fake_quant::Grad::none"
         : f.grad == FakeQuantGrad::straight ? "tw::fake_quant::Grad::straight"
                                             : "tw::fake_quant::Grad::learned";
}

double elements(const FakeQuant& f) { return static_cast<double>(f.rows) * static_cast<double>(f.cols); }

class Vectors final : public FamilyOf<FakeQuant> {
 public:
  Vectors() : FamilyOf("fake_quant") {}
  std::string_view name() const override { return "vectors"; }
  std::string_view title() const override { return "16-byte accesses, blocks in turns, sums in one order"; }

 protected:
  Text text(const FakeQuant& f, const Candidate& candidate, const Arch&) const override {
    return {.plan_type = fmt::format("tw::fake_quant::Vectors<{}, kKnobs, {}>", format_type(f.x), grad_of(f)),
            .formats = {f.x},
            .prelude = kTable.text(derived(f, candidate))};
  }
  void costs(const FakeQuant& f, const Candidate& candidate, const Arch&, Traits& t) const override {
    const Knobs k = derived(f, candidate);
    const int inputs = f.grad == FakeQuantGrad::none ? 1 : 2;
    t.registers = 36 + inputs * k.loads * k.piece;
    t.bytes_in_flight = inputs * k.loads * k.piece * fast_path(f.x).element_bytes;
    // Of each element the code and what follows from it, of each piece the division that finds its row.
    t.alu_ops = elements(f) * (learned(f) ? 14.0 : 9.0) + elements(f) / k.piece * (by_row(f) && !learned(f) ? 50 : 5);
    t.later_wave_cost = 0.1;  // a loop's turn
  }
  std::vector<Candidate> list(const FakeQuant&) const override {
    std::vector<Candidate> all;
    for (const int threads : {256, 512, 128})
      for (const int loads : {4, 2, 8}) all.push_back(kTable.candidate(name(), {.threads = threads, .loads = loads}));
    return all;
  }
  LaunchPlan plan(const FakeQuant& f, const Candidate& candidate, const Arch& arch) const override {
    const Knobs k = derived(f, candidate);
    LaunchPlan p{.x = {1, 1, 0}, .y = {}, .z = {}, .threads = static_cast<std::uint32_t>(k.threads)};
    if (!(k.learned && k.by_row)) p.x = run_grid(std::int64_t{k.tile()} * k.piece, f.rows, f.cols);
    p.persistent = static_cast<std::uint32_t>(std::max(1, arch.threads_per_sm / k.threads));
    if (k.learned) p.shared_bytes = 264;
    return p;
  }

 private:
  static Knobs derived(const FakeQuant& f, const Candidate& candidate) {
    Knobs k = kTable.knobs(candidate);
    const int whole = 16 / fast_path(f.x).element_bytes;
    k.piece = by_row(f) && f.cols % whole != 0 ? 1 : whole;
    k.by_row = by_row(f);
    k.learned = learned(f);
    return k;
  }
};

class Reference final : public FamilyOf<FakeQuant> {
 public:
  Reference() : FamilyOf("fake_quant") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one thread for each element, by the format's scalar codec"; }

 protected:
  Text text(const FakeQuant& f, const Candidate&, const Arch&) const override {
    return {.plan_type = fmt::format("tw::fake_quant::Reference<{}, {}, {}>", format_type(f.x), by_row(f), grad_of(f)),
            .formats = {f.x}};
  }
  void costs(const FakeQuant& f, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 40;
    t.bytes_in_flight = 4;
    t.alu_ops = elements(f) * 60;
  }
  LaunchPlan plan(const FakeQuant& f, const Candidate&, const Arch&) const override {
    if (!learned(f)) return {.x = run_grid(128, f.rows, f.cols), .y = {}, .z = {}, .threads = 128};
    return {.x = {1, by_row(f) ? 1u : 0u, 0}, .y = {}, .z = {}, .threads = 32};
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

}  // namespace tilewright::fake_quant
