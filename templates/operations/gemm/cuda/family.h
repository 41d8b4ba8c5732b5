// SPDX-License-Identifier: Apache-2.0
// What the families share whose kernel is a template over x, w, an epilogue and a struct of knobs: from knobs to
// candidates and back, the generated source, and grids that no device takes.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "templates/common/knobs.h"
#include "templates/common/specialize.h"
#include "templates/operations/gemm/gemm.h"

namespace tilewright::gemm {

// Blocks along x that every device launches. No family uses the other axes, which end at 65535 blocks.
inline constexpr std::uint64_t kMostBlocks = 0x7fffffff;

// Whether a device launches as many blocks as a plan has for m tokens and n features.
inline bool launchable(const LaunchPlan& plan, std::int64_t m, std::int64_t n) {
  return plan.x.blocks(m, n) <= kMostBlocks;
}

// Bytes of shared memory that the hardware reserves for each block.
inline constexpr int kReservedShared = 1024;

template <class Knobs>
class KernelFamily : public ReusableFamily {
 public:
  struct Names {
    std::string_view family, title;
    const char* header;  // "operations/gemm/cuda/gemv/kernel.cuh"
    const char* kernel;  // "tw::gemm::Gemv"
  };
  KernelFamily(const Names& names, const KnobTable<Knobs>& knobs) : names_(names), knobs_(knobs) {}

  std::string_view op() const final { return "gemm"; }
  std::string_view name() const final { return names_.family; }
  std::string_view title() const final { return names_.title; }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const final {
    if (!why_not(problem, arch).empty()) return {};
    if (const auto bytes = as_bytes(problem)) return candidates(*bytes, arch);
    std::vector<Candidate> out;
    for (const Knobs& k : launchable_knobs(problem, arch)) out.push_back(knobs_.candidate(name(), k));
    return out;
  }

  // Whether it is there is all that is asked: of hundreds of candidates none is written out.
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const final {
    if (candidate.family != name()) return EnumeratedFamily::illegal(problem, arch, candidate);
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    if (const auto bytes = as_bytes(problem)) return illegal(*bytes, arch, candidate);
    const std::vector<Knobs> legal = launchable_knobs(problem, arch);
    if (std::any_of(legal.begin(), legal.end(), [&](const Knobs& k) { return knobs_.names(candidate, k); })) return {};
    return not_among(candidate, legal.size());
  }

  std::optional<Costed> cheapest(const Problem& problem, const Arch& arch,
                                 const std::function<double(const Traits&)>& cost) const final {
    if (!why_not(problem, arch).empty()) return {};
    if (const auto bytes = as_bytes(problem)) return cheapest(*bytes, arch, cost);
    std::optional<Knobs> best;
    double least = 0;
    for (const Knobs& k : launchable_knobs(problem, arch))
      if (const double n = cost(traits_of(problem, arch, k)); !best || n < least) best = k, least = n;
    if (!best) return {};
    return Costed{knobs_.candidate(name(), *best), least};
  }

  Source source(const Problem& problem, const Arch& arch, const Candidate& c) const final {
    return specialize(specialization(problem, arch, c));
  }
  Specialization specialization(const Problem& problem, const Arch& arch, const Candidate& c) const final {
    const Gemm &g = *problem.as<Gemm>(), planned = as_bytes(g);
    const Knobs k = knobs_of(planned, c);
    Specialization s;
    s.name = fmt::format("gemm/{}", name());
    s.includes = includes_for(g, names_.header);
    s.prelude = knobs_.text(k);
    s.plan_type = fmt::format("{}<{}, kKnobs>", names_.kernel, kernel_types(g, k));
    s.space = "tw::gemm";
    s.plan = launch_plan(planned, arch, k);
    if (signs(g)) {
      s.plan_type = fmt::format("tw::gemm::SignProducts<{}>", s.plan_type);
      for (TensorMapPlan& map : s.plan.maps) map.block = static_cast<std::uint32_t>(g.x.block());
    }
    extend(g, arch, k, s);
    return s;
  }

  Traits traits(const Problem& problem, const Arch& arch, const Candidate& c) const final {
    if (const auto bytes = as_bytes(problem)) return traits(*bytes, arch, c);
    return traits_of(problem, arch, knobs_of(*problem.as<Gemm>(), c));
  }

 protected:
  // Every legal choice, in a deterministic order. Precondition of these: why_not() is empty.
  virtual std::vector<Knobs> legal_knobs(const Gemm& g, const Arch& arch) const = 0;
  virtual LaunchPlan launch_plan(const Gemm& g, const Arch& arch, const Knobs& k) const = 0;
  virtual Traits traits_of(const Problem& problem, const Arch& arch, const Knobs& k) const = 0;
  // The kernel's template arguments before its knobs.
  virtual std::string kernel_types(const Gemm& g, const Knobs&) const {
    return fmt::format("{}, {}, {}", multiplied_x(g), multiplied_w(g), epilogue_type(g));
  }
  // Sets the members of `k` that candidates do not name.
  virtual void derive(const Gemm&, Knobs&) const {}
  // What else a generated source needs.
  virtual void extend(const Gemm&, const Arch&, const Knobs&, Specialization&) const {}

 private:
  // Precondition: why_not() is empty.
  std::vector<Knobs> launchable_knobs(const Problem& problem, const Arch& arch) const {
    const Gemm& g = *problem.as<Gemm>();
    std::vector<Knobs> out = legal_knobs(g, arch);
    std::erase_if(out, [&](const Knobs& k) { return !launchable(launch_plan(g, arch, k), g.m, g.n); });
    return out;
  }
  Knobs knobs_of(const Gemm& g, const Candidate& c) const {
    Knobs k = knobs_.knobs(c);
    derive(g, k);
    return k;
  }

  Names names_;
  KnobTable<Knobs> knobs_;
};

}  // namespace tilewright::gemm
