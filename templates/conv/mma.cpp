// SPDX-License-Identifier: Apache-2.0
// mma: the candidates of gemm's family of that name for the gemm that a convolution is.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "templates/checks.h"
#include "templates/conv/conv.h"
#include "templates/fast_path.h"
#include "templates/gemm/gemm.h"
#include "templates/specialize.h"

namespace tilewright::conv {
namespace {

class Mma final : public Family {
 public:
  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return "mma"; }
  std::string_view title() const override {
    return "matrix units through mma.sync, the input gathered on its way into shared memory";
  }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "not a conv";
    if (c->groups != 1) return fmt::format("groups = {}: channels of one group are needed", c->groups);
    if (c->x_layout != TensorLayout::ndhwc || c->y_layout != TensorLayout::ndhwc)
      return "x_layout and y_layout of ndhwc are needed";
    if (not_pointwise(*c).empty()) return "a pointwise convolution, which pointwise_mma serves";
    if (c->w_layout != FilterLayout::ktrsc) return "w_layout=ktrsc is needed";
    const FastPath& x = fast_path(c->x);
    // Copies of 16 bytes.
    if (c->c * x.element_bytes % 16 != 0)
      return fmt::format("c = {}: a multiple of {} is needed", c->c, 16 / x.element_bytes);
    const Gemm g = as_gemm(*c);
    if (g.m > kMaxExtent) return fmt::format("{} output pixels: at most {}", g.m, kMaxExtent);
    return gemm::mma().why_not(Problem(g), arch);
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return gemm::mma().candidates(product(problem), arch);
  }
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    return gemm::mma().illegal(product(problem), arch, candidate);
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    Specialization s = gemm::mma().specialization(product(problem), arch, candidate);
    s.name = "conv/mma";
    s.includes.front() = "conv/mma.cuh";
    s.space = "tw::conv";
    s.plan_type.replace(0, std::string_view("tw::gemm").size(), s.space);
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    Traits t = gemm::mma().traits(product(problem), arch, candidate);
    t.unique_bytes = problem.min_bytes();
    return t;
  }

 private:
  static Problem product(const Problem& problem) { return Problem(as_gemm(*problem.as<Conv>())); }
};

}  // namespace

const Family& mma() {
  static const Mma family;
  return family;
}

}  // namespace tilewright::conv
