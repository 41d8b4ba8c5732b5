// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "templates/common/family_of.h"
#include "templates/common/run_grid.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/fp4_fake_quant/cuda/plan.cuh"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"

namespace tilewright::fp4_fake_quant {
namespace {

using Knobs = tw::fp4_fake_quant::Knobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::threads>("threads"), knob<&Knobs::passes>("passes")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::block>("block"), knob<&Knobs::piece>("piece"),
                                    knob<&Knobs::ragged>("ragged")};
constexpr int kMostElements = 32;  // of x in a thread's registers

double elements(const Fp4FakeQuant& p) { return static_cast<double>(p.rows) * static_cast<double>(p.cols); }

// Of thread blocks that take `tile` blocks of elements each.
GridAxis grid(const Fp4FakeQuant& p, std::int64_t tile) {
  GridAxis axis = run_grid(tile, p.rows, (p.cols + p.block - 1) / p.block);
  axis.per_cols *= static_cast<std::uint32_t>(p.block);
  return axis;
}

class Blocks final : public FamilyOf<Fp4FakeQuant> {
 public:
  Blocks() : FamilyOf("fp4_fake_quant") {}
  std::string_view name() const override { return "blocks"; }
  std::string_view title() const override { return "a block in registers of neighbouring lanes, 16-byte accesses"; }

 protected:
  Text text(const Fp4FakeQuant& p, const Candidate& candidate, const Arch&) const override {
    return {.plan_type = fmt::format("tw::fp4_fake_quant::Blocks<{}, {}, kKnobs>", format_type(p.x), format_type(p.y)),
            .formats = {p.x, p.y},
            .prelude = table().text(derived(p, table().knobs(candidate)))};
  }
  void costs(const Fp4FakeQuant& p, const Candidate& candidate, const Arch&, Traits& t) const override {
    const Knobs k = derived(p, table().knobs(candidate));
    t.registers = 28 + k.passes * k.elements();
    t.bytes_in_flight = k.passes * k.elements() * fast_path(p.x).element_bytes;
    // Rounding an element, and of each lane two divisions and the shuffles for a block; addresses of short accesses.
    t.alu_ops = elements(p) * (18.0 + 60.0 / k.elements() + (k.piece == 1 ? 8.0 : 0.0));
  }
  LaunchPlan plan(const Fp4FakeQuant& p, const Candidate& candidate, const Arch&) const override {
    const Knobs k = derived(p, table().knobs(candidate));
    return {.x = grid(p, k.tile()), .y = {}, .z = {}, .threads = static_cast<std::uint32_t>(k.threads)};
  }
  std::vector<Candidate> list(const Fp4FakeQuant& p) const override {
    std::vector<Candidate> all;
    for (const int threads : {256, 128})
      for (const int passes : {1, 2, 4, 8}) {
        const Knobs k = derived(p, {.threads = threads, .passes = passes});
        if (passes == 1 || passes * k.elements() <= kMostElements) all.push_back(table().candidate(name(), k));
      }
    return all;
  }

 private:
  static KnobTable<Knobs> table() { return {"tw::fp4_fake_quant::Knobs", kKnobs, kDerived}; }
  static Knobs derived(const Fp4FakeQuant& p, Knobs k) {
    const int whole = 16 / fast_path(p.x).element_bytes;
    k.block = p.block;
    k.ragged = p.cols % p.block != 0;
    k.piece = p.cols % whole == 0 ? whole : 1;
    return k;
  }
};

class Reference final : public FamilyOf<Fp4FakeQuant> {
 public:
  Reference() : FamilyOf("fp4_fake_quant") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one thread for each block, by the formats' scalar codecs"; }

 protected:
  Text text(const Fp4FakeQuant& p, const Candidate&, const Arch&) const override {
    return {.plan_type =
                fmt::format("tw::fp4_fake_quant::Reference<{}, {}, {}>", format_type(p.x), format_type(p.y), p.block),
            .formats = {p.x, p.y}};
  }
  void costs(const Fp4FakeQuant& p, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 40;
    t.bytes_in_flight = 4;
    t.global_bytes *= 8;  // narrow accesses, a block apart
    t.alu_ops = elements(p) * 60;
  }
  LaunchPlan plan(const Fp4FakeQuant& p, const Candidate&, const Arch&) const override {
    return {.x = grid(p, 128), .y = {}, .z = {}, .threads = 128};
  }
};

}  // namespace

const Family& blocks() {
  static const Blocks family;
  return family;
}
const Family& reference() {
  static const Reference family;
  return family;
}

}  // namespace tilewright::fp4_fake_quant
