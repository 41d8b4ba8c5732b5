// SPDX-License-Identifier: Apache-2.0
// What the families share whose kernel is a template over x, w, an epilogue and a struct of knobs: from knobs to
// candidates and back, the generated source, and grids that no device takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "templates/gemm/gemm.h"
#include "templates/knobs.h"
#include "templates/specialize.h"

namespace tilewright::gemm {

// Whether a device launches as many blocks as a plan has for m tokens and n features.
inline bool launchable(const LaunchPlan& plan, std::int64_t m, std::int64_t n) {
  constexpr std::uint64_t kMostX = 0x7fffffff, kMostYZ = 65535;
  return plan.x.blocks(m, n) <= kMostX && plan.y.blocks(m, n) <= kMostYZ && plan.z.blocks(m, n) <= kMostYZ;
}

// Bytes of shared memory that the hardware reserves for each block.
inline constexpr int kReservedShared = 1024;

template <class Knobs>
class KernelFamily : public EnumeratedFamily {
 public:
  struct Names {
    std::string_view family, title;
    const char* header;  // "gemm/gemv/kernel.cuh"
    const char* kernel;  // "tw::gemm::Gemv"
  };
  KernelFamily(const Names& names, const KnobTable<Knobs>& knobs) : names_(names), knobs_(knobs) {}

  std::string_view op() const final { return "gemm"; }
  std::string_view name() const final { return names_.family; }
  std::string_view title() const final { return names_.title; }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const final {
    if (!why_not(problem, arch).empty()) return {};
    const Gemm& g = *problem.as<Gemm>();
    std::vector<Candidate> out;
    for (const Knobs& k : legal_knobs(g, arch))
      if (launchable(launch_plan(g, arch, k), g.m, g.n)) out.push_back(knobs_.candidate(name(), k));
    return out;
  }

  Source source(const Problem& problem, const Arch& arch, const Candidate& c) const final {
    const Gemm& g = *problem.as<Gemm>();
    const Knobs k = knobs_.knobs(c);
    Specialization s;
    s.name = fmt::format("gemm/{}", name());
    s.includes = includes_for(g, names_.header);
    s.prelude = knobs_.text(k);
    s.plan_type = fmt::format("{}<{}, kKnobs>", names_.kernel, kernel_types(g, k));
    s.space = "tw::gemm";
    s.plan = launch_plan(g, arch, k);
    extend(g, arch, k, s);
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch& arch, const Candidate& c) const final {
    return traits_of(problem, arch, knobs_.knobs(c));
  }

 protected:
  // Every legal choice, in a deterministic order. Precondition of these: why_not() is empty.
  virtual std::vector<Knobs> legal_knobs(const Gemm& g, const Arch& arch) const = 0;
  virtual LaunchPlan launch_plan(const Gemm& g, const Arch& arch, const Knobs& k) const = 0;
  virtual Traits traits_of(const Problem& problem, const Arch& arch, const Knobs& k) const = 0;
  // The kernel's template arguments before its knobs.
  virtual std::string kernel_types(const Gemm& g, const Knobs&) const {
    return fmt::format("{}, {}, {}", format_type(g.x), format_type(g.w), epilogue_type(g));
  }
  // What else a generated source needs.
  virtual void extend(const Gemm&, const Arch&, const Knobs&, Specialization&) const {}

 private:
  Names names_;
  KnobTable<Knobs> knobs_;
};

}  // namespace tilewright::gemm
