// SPDX-License-Identifier: Apache-2.0
// What conv's families of pixel tiles have in common: a kernel of the formats and the epilogue, whose knobs the source
// defines as kKnobs. A family adds its knobs, which of them a convolution may take, and what they cost.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "templates/common/knobs.h"
#include "templates/common/specialize.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::conv {

// Layer: a convolution on a target, constructed from (Conv, Arch), with
//   Knobs                    the kernel's struct of knobs; k below is complete, but where noted
//   gemm, arch               as_gemm() of the convolution, and the target
//   refusal(conv, arch)      static: why no tile serves the convolution; empty if one may
//   kNoTile                  why_not() where knobs() is empty
//   knobs()                  the tiles that are worth a try, incomplete
//   complete(k)              k, incomplete, with what follows from the convolution
//   grid(k), kPersistent     the launch's blocks; whether as many as are resident take them in turns
//   registers(k)             of a thread, about
//   resident(k)              blocks of a multiprocessor
//   costs(k, traits)         sets what the kernel reads, multiplies and stores
template <class Layer>
class TiledFamily final : public EnumeratedFamily {
 public:
  using Knobs = typename Layer::Knobs;

  // `name`: the folder in conv/, of which kernel.cuh has tw::conv::`type`.
  TiledFamily(std::string_view name, std::string_view type, std::string_view title, const KnobTable<Knobs>& table)
      : name_(name), type_(type), title_(title), table_(table) {}

  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return name_; }
  std::string_view title() const override { return title_; }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "the problem is not a conv";
    if (std::string why = Layer::refusal(*c, arch); !why.empty()) return why;
    return Layer(*c, arch).knobs().empty() ? Layer::kNoTile : "";
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c || !Layer::refusal(*c, arch).empty()) return {};
    std::vector<Candidate> out;
    for (const Knobs& k : Layer(*c, arch).knobs()) out.push_back(table_.candidate(name_, k));
    return out;
  }

  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Layer l(*problem.as<Conv>(), arch);
    const Knobs k = l.complete(table_.knobs(candidate));
    Specialization s;
    s.name = fmt::format("conv/{}", name_);
    s.includes = gemm::includes_for(l.gemm, fmt::format("operations/conv/cuda/{}/kernel.cuh", name_).c_str());
    s.prelude = table_.text(k);
    s.plan_type = fmt::format("tw::conv::{}<{}, {}, {}, kKnobs>", type_, format_type(l.gemm.x), format_type(l.gemm.w),
                              gemm::epilogue_type(l.gemm));
    s.space = "tw::conv";
    s.plan.x = l.grid(k);
    // Blocks take what the grid leaves out in turns; those for which there is no tile end at once.
    if (Layer::kPersistent) s.plan.persistent = static_cast<std::uint32_t>(l.resident(k));
    s.plan.threads = static_cast<std::uint32_t>(k.threads());
    s.plan.shared_bytes = static_cast<std::uint32_t>(k.shared_bytes());
    s.blocks_per_sm = l.resident(k);
    s.plan.overlap = arch.clusters;  // targets that have one have the other
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Layer l(*problem.as<Conv>(), arch);
    const Knobs k = l.complete(table_.knobs(candidate));
    Traits t;
    t.threads = k.threads(), t.shared_bytes = k.shared_bytes(), t.registers = l.registers(k);
    t.unique_bytes = problem.min_bytes();
    t.later_wave_cost = 0.5;
    l.costs(k, t);
    return t;
  }

 private:
  std::string_view name_, type_, title_;
  const KnobTable<Knobs>& table_;
};

}  // namespace tilewright::conv
