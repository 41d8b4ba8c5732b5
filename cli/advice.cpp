// SPDX-License-Identifier: Apache-2.0
#include "cli/advice.h"

#include <fmt/format.h>
#include <tilewright/family.h>
#include <tilewright/operation.h>

#include <vector>

namespace tilewright::cli {
namespace {

bool has_other_kernels(const Problem& problem, const Arch& arch) {
  const auto all = families(problem.op(), arch);
  for (const Family* family : all)
    if (family != all.back() && !family->candidates(problem, arch).empty()) return true;
  return false;
}

double first_prediction(const Engine& engine, const Problem& problem, const Arch& arch) {
  return engine.plan(problem, arch).front().predicted_microseconds;
}

}  // namespace

std::optional<Advice> advise(const Engine& engine, const Problem& problem, const Arch& arch, double predicted) {
  Advice advice{problem.text(), predicted, {}};
  for (const Recommendation& r : problem.operation().recommended(problem, arch)) {
    advice.problem = r.problem.text();
    advice.fields.push_back({r.field, r.how, first_prediction(engine, r.problem, arch)});
  }
  if (advice.fields.empty()) return std::nullopt;
  return advice;
}

std::string text(const Advice& advice) {
  std::string out = "These fields allow faster kernels:\n";
  double before = advice.predicted_microseconds;
  for (const AdvisedField& f : advice.fields) {
    const double ratio = before / f.predicted_microseconds;
    out += fmt::format(
        "  {:<19} {}; {}\n", f.field, f.how,
        ratio > 1.005 ? fmt::format("predicted {:.2f} times as fast", ratio) : "the model does not know what it gains");
    before = f.predicted_microseconds;
  }
  const double all = advice.predicted_microseconds / before;
  return out + fmt::format("  {}\n  predicted {:.2f} us instead of {:.2f}{}; measure with tune.", advice.problem,
                           before, advice.predicted_microseconds,
                           all > 1.005 ? fmt::format(", {:.2f} times as fast", all) : "");
}

Json json(const Advice& advice) {
  Json fields = Json::array();
  for (const AdvisedField& f : advice.fields)
    fields.push_back({{"field", f.field}, {"how", f.how}, {"predicted_microseconds", f.predicted_microseconds}});
  return {{"problem", advice.problem},
          {"predicted_microseconds", advice.fields.back().predicted_microseconds},
          {"fields", fields}};
}

std::string without_kernels(const Problem& problem, const Arch& arch) {
  const auto all = families(problem.op(), arch);
  if (has_other_kernels(problem, arch)) return {};
  if (!all.empty() && !all.back()->name().ends_with("reference") && all.back()->why_not(problem, arch).empty())
    return {};
  const std::string why = all.empty() ? "" : all.front()->why_not(problem, arch);
  return fmt::format("{} has no kernels for this {}{}", arch.name, problem.op(),
                     why.empty() ? "" : fmt::format(" ({})", why));
}

}  // namespace tilewright::cli
