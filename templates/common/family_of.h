// SPDX-License-Identifier: Apache-2.0
// What families of operations with short lists of candidates share: everything but a kernel's knobs, plan,
// text and costs.
#pragma once

#include <tilewright/family.h>
#include <tilewright/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "templates/common/knobs.h"
#include "templates/common/specialize.h"

namespace tilewright {

// A family of the operation whose struct is P. Its kernel's text is in the file that it is named after.
template <class P>
class FamilyOf : public EnumeratedFamily {
 public:
  // `folder`: of templates/operations, and the namespace of its kernels.
  explicit FamilyOf(std::string_view folder) : folder_(folder) {}

  std::string_view op() const final { return P::kOperation; }
  std::string why_not(const Problem& problem, const Arch&) const final {
    return problem.as<P>() ? refusal(*problem.as<P>())
                           : fmt::format("the problem is not of operation {}", P::kOperation);
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const final {
    return why_not(problem, arch).empty() ? list(*problem.as<P>()) : std::vector<Candidate>();
  }

  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const final {
    const P& p = *problem.as<P>();
    const Text of = text(p, candidate, arch);
    Specialization s;
    s.name = fmt::format("{}/{}", op(), name());
    s.includes = {fmt::format("operations/{}/cuda/{}.cuh", folder_, of.header.empty() ? name() : of.header)};
    for (auto f = of.formats.begin(); f != of.formats.end(); ++f)
      if (std::find(of.formats.begin(), f, *f) == f) s.includes.push_back(format_file(*f));
    s.prelude = of.prelude;
    s.plan_type = of.plan_type;
    s.space = of.space.empty() ? fmt::format("tw::{}", folder_) : of.space;
    s.plan = plan(p, candidate, arch);
    if (of.bound_registers) s.blocks_per_sm = std::max(1, static_cast<int>(s.plan.persistent));
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const final {
    const P& p = *problem.as<P>();
    const LaunchPlan launch = plan(p, candidate, arch);
    Traits t;
    t.threads = static_cast<int>(launch.threads);
    t.shared_bytes = static_cast<int>(launch.shared_bytes);
    t.tile_rows = std::max(1, static_cast<int>(launch.x.per_rows));
    t.tile_cols = static_cast<int>(launch.x.per_cols ? launch.x.per_cols : std::max<std::int64_t>(1, problem.cols()));
    t.blocks = static_cast<double>(launch.x.blocks(std::max<std::int64_t>(1, problem.rows()), problem.cols()));
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    costs(p, candidate, arch, t);
    return t;
  }

 protected:
  // Why no candidate serves p; empty if some do.
  virtual std::string refusal(const P&) const { return ""; }
  // A kernel without knobs, unless a family says otherwise.
  virtual std::vector<Candidate> list(const P&) const { return {{std::string(name()), {}}}; }

  virtual LaunchPlan plan(const P& p, const Candidate& candidate, const Arch& arch) const = 0;
  // What a source states besides the plan.
  struct Text {
    std::string plan_type;         // of the kernel, with its template arguments
    std::vector<Format> formats;   // whose files it includes
    std::string prelude = {};      // the knobs
    std::string_view header = {};  // the kernel's file in the folder, if not the family's name
    std::string space = {};        // the kernel's namespace, if not the folder's
    bool bound_registers = false;  // so that as many blocks are resident as the plan says
  };
  virtual Text text(const P& p, const Candidate& candidate, const Arch& arch) const = 0;
  // Sets registers, bytes in flight and operations. The rest follows from the plan, every byte read or written once.
  virtual void costs(const P& p, const Candidate& candidate, const Arch& arch, Traits& t) const = 0;

 private:
  std::string_view folder_;
};

}  // namespace tilewright
