// SPDX-License-Identifier: Apache-2.0
// What families of operations with short lists of candidates share: everything but a kernel's knobs, plan and costs.
#pragma once

#include <tilewright/family.h>
#include <tilewright/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "templates/knobs.h"
#include "templates/specialize.h"

namespace tilewright {

// A family of the operation whose struct is P. Its kernel's text is in the file that it is named after.
template <class P>
class FamilyOf : public EnumeratedFamily {
 public:
  // `folder`: of templates, and the namespace of its kernels.
  explicit FamilyOf(std::string_view folder) : folder_(folder) {}

  std::string_view op() const final { return P::kOperation; }
  std::string why_not(const Problem& problem, const Arch&) const final {
    return problem.as<P>() ? refusal(*problem.as<P>()) : fmt::format("not of operation {}", P::kOperation);
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const final {
    return why_not(problem, arch).empty() ? list(*problem.as<P>()) : std::vector<Candidate>();
  }

 protected:
  // Why no candidate serves p; empty if some do.
  virtual std::string refusal(const P&) const { return ""; }
  // A kernel without knobs, unless a family says otherwise.
  virtual std::vector<Candidate> list(const P&) const { return {{std::string(name()), {}}}; }

  // All of a source but its knobs and the type of its plan. `header`: the file of the kernel, if not the family's name.
  Specialization specialization(const LaunchPlan& plan, const std::vector<Format>& formats,
                                std::string_view header = {}) const {
    Specialization s;
    s.name = fmt::format("{}/{}", op(), name());
    s.includes = {fmt::format("{}/{}.cuh", folder_, header.empty() ? name() : header)};
    for (auto f = formats.begin(); f != formats.end(); ++f)
      if (std::find(formats.begin(), f, *f) == f) s.includes.push_back(format_file(*f));
    s.space = fmt::format("tw::{}", folder_);
    s.plan = plan;
    return s;
  }
  // Of a launch by this plan: what follows from it, every byte read or written once.
  static Traits base_traits(const Problem& problem, const LaunchPlan& plan) {
    Traits t;
    t.threads = static_cast<int>(plan.threads);
    t.shared_bytes = static_cast<int>(plan.shared_bytes);
    t.tile_rows = std::max(1, static_cast<int>(plan.x.per_rows));
    t.tile_cols = static_cast<int>(plan.x.per_cols ? plan.x.per_cols : std::max<std::int64_t>(1, problem.cols()));
    t.blocks = static_cast<double>(plan.x.blocks(std::max<std::int64_t>(1, problem.rows()), problem.cols()));
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    return t;
  }

 private:
  std::string_view folder_;
};

}  // namespace tilewright
