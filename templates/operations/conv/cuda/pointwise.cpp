// SPDX-License-Identifier: Apache-2.0
// Pointwise (1 x 1) convolutions of stride 1: the candidates of gemm's families. A launch takes ConvArgs, so tensor
// maps get other offsets and the kernel a wrapper (pointwise.cuh).
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>

#include "templates/common/checks.h"
#include "templates/common/specialize.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/gemm/cuda/wgmma/operands.h"
#include "templates/operations/gemm/gemm.h"
#include "templates/operations/gemm/params.cuh"

namespace tilewright::conv {
namespace {

// Offsets in a tensor map: a gemm's, and those of the same values in ConvArgs and conv's constants. Maps of candidates
// that quantize x need others, but no conv has these.
struct Place {
  std::size_t of_gemm, of_conv;
};
constexpr std::size_t kConstants = TensorMapPlan::kConstants;
constexpr Place kPlaces[] = {
    {offsetof(GemmArgs, x), offsetof(ConvArgs, x)},
    {offsetof(GemmArgs, w), offsetof(ConvArgs, w)},
    {offsetof(GemmArgs, workspace), offsetof(ConvArgs, workspace)},
    {offsetof(GemmArgs, m), kConstants + offsetof(tw::conv::Shape, gemm_m)},
    {offsetof(GemmArgs, ldx), TensorMapPlan::kNone},  // dense
    {kConstants + offsetof(tw::gemm::Shape, n), kConstants + offsetof(tw::conv::Shape, gemm_n)},
    {kConstants + offsetof(tw::gemm::Shape, k), kConstants + offsetof(tw::conv::Shape, gemm_k)},
    {TensorMapPlan::kNone, TensorMapPlan::kNone},
};
void move_to_conv(std::uint32_t& offset) {
  const auto place =
      std::find_if(std::begin(kPlaces), std::end(kPlaces), [&](const Place& p) { return p.of_gemm == offset; });
  if (place == std::end(kPlaces))
    throw std::logic_error(
        fmt::format("a tensor map reads {:#x} of a gemm's arguments, for which conv has no field", offset));
  offset = static_cast<std::uint32_t>(place->of_conv);
}

class Pointwise final : public Family {
 public:
  Pointwise(const gemm::ReusableFamily& of, std::string_view title)
      : of_(of), name_(fmt::format("pointwise_{}", of.name())), title_(title) {}

  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return name_; }
  std::string_view title() const override { return title_; }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "the problem is not a conv";
    if (std::string why = in_panels(*c); !why.empty()) return why;
    if (std::string why = not_pointwise(*c); !why.empty()) return why;
    const Gemm g = as_gemm(*c);
    if (g.m > kMaxExtent) return fmt::format("y must have at most {} pixels (got {})", kMaxExtent, g.m);
    return of_.why_not(product(problem), arch);
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    std::vector<Candidate> out = of_.candidates(product(problem), arch);
    for (Candidate& c : out) c.family = name();
    return out;
  }
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    if (candidate.family != name()) return fmt::format("family is '{}', not '{}'", candidate.family, name());
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    return of_.illegal(product(problem), arch, of_gemm(candidate));
  }
  std::optional<Costed> cheapest(const Problem& problem, const Arch& arch,
                                 const std::function<double(const Traits&)>& cost) const override {
    if (!why_not(problem, arch).empty()) return {};
    std::optional<Costed> best = of_.cheapest(product(problem), arch, cost);
    if (best) best->candidate.family = name();
    return best;
  }

  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    Specialization s = of_.specialization(product(problem), arch, of_gemm(candidate));
    s.name = fmt::format("conv/{}", name());
    s.includes.push_back("operations/conv/cuda/pointwise.cuh");
    s.plan_type = fmt::format("tw::conv::Pointwise<{}>", s.plan_type);
    s.space = "tw::conv";
    s.plan.most_rows = 0;
    for (std::uint32_t i = 0; i < s.plan.map_count; ++i) {
      TensorMapPlan& map = s.plan.maps[i];
      for (std::uint32_t* offset : {&map.pointer, &map.rows_at, &map.stride_at, &map.inner_at}) move_to_conv(*offset);
    }
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    return of_.traits(product(problem), arch, of_gemm(candidate));
  }

 private:
  static Problem product(const Problem& problem) {
    Gemm g = as_gemm(*problem.as<Conv>());
    // Launches are not divided: x that is widened in the workspace needs room there for all of its rows.
    if (const std::optional<gemm::WgmmaProblem> p = gemm::wgmma_problem(g, g.m, true); p && p->most_tokens(g) < g.m)
      g.workspace = 0;
    return Problem(g);
  }
  Candidate of_gemm(Candidate candidate) const {
    candidate.family = of_.name();
    return candidate;
  }

  const gemm::ReusableFamily& of_;
  std::string name_, title_;
};

}  // namespace

std::string not_pointwise(const Conv& conv) {
  if (conv.quant_act.block) return "quant_act is not supported: x is fake quantized before it is multiplied";
  if (conv.groups != 1) return fmt::format("groups must be 1 (got {})", conv.groups);
  if (conv.x_layout != TensorLayout::ndhwc || conv.y_layout != TensorLayout::ndhwc)
    return "x_layout and y_layout must be ndhwc";
  for (const tw::conv::Axis& a : shape_of(conv).axes) {
    if (a.kernel != 1) return fmt::format("kernel must be 1 on every axis (got {})", a.kernel);
    if (a.lo != 0 || a.out != a.in || (a.stride != 1 && a.in != 1))
      return "stride must be 1, and there must be no padding";
  }
  return {};
}

const Family& pointwise_wgmma() {
  static const Pointwise family(gemm::wgmma(), "pointwise, stride 1, as a plain gemm: gemm's wgmma kernels");
  return family;
}
const Family& pointwise_mma() {
  static const Pointwise family(gemm::mma(), "pointwise, stride 1, as a plain gemm: gemm's mma kernels");
  return family;
}
const Family& pointwise_gemv() {
  static const Pointwise family(gemm::gemv(), "pointwise, stride 1, as a plain gemm: gemm's gemv kernels");
  return family;
}

}  // namespace tilewright::conv
