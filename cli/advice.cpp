// SPDX-License-Identifier: Apache-2.0
#include "cli/advice.h"

#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/operation.h>

#include <vector>

namespace tilewright::cli {
namespace {

// Enough on an H200 or H100, which have 132 multiprocessors, for kernels that share the last tiles between blocks.
constexpr const char* kWorkspace = "workspace=34603008";

bool names_field(const Problem& problem, std::string_view field) {
  const std::string key = " " + std::string(field.substr(0, field.find('=') + 1));
  return problem.text().find(key) != std::string::npos;
}

// The problem with one more field; nothing where its operation has no such field, or not here.
std::optional<Problem> with(const Problem& problem, const std::string& field) {
  try {
    return Problem::parse(problem.text() + " " + field);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// True if the target has other kernels for `asked` than for `problem`, or if it overlaps launches and the constants,
// which may widen the overlap, differ.
bool changes_kernels(const Problem& problem, const Problem& asked, const Arch& arch) {
  for (const Family* family : families(problem.op())) {
    const std::vector<Candidate> before = family->candidates(problem, arch), after = family->candidates(asked, arch);
    if (before != after) return true;
    if (before.empty()) continue;
    const Source one = family->source(problem, arch, before.front()),
                 other = family->source(asked, arch, after.front());
    if (one.text != other.text) return true;
    if (one.plan.overlap &&
        problem.operation().contract(problem).constants != asked.operation().contract(asked).constants)
      return true;
  }
  return false;
}

// True if packed weights leave a target only the reference kernel, and weights as stored do not.
bool faster_as_stored(const Problem& problem, const Arch& arch) {
  constexpr std::string_view kTiles = " pack=tiles";
  std::string text = problem.text();
  const std::size_t at = text.find(kTiles);
  if (at == text.npos) return false;
  const Problem stored = Problem::parse(text.erase(at, kTiles.size()));
  for (const Family* family : families(stored.op()))
    if (family->name() != "reference" && !family->candidates(stored, arch).empty()) return true;
  return false;
}

double first_prediction(const Engine& engine, const Problem& problem, const Arch& arch) {
  return engine.plan(problem, arch).front().predicted_microseconds;
}

}  // namespace

std::optional<Advice> advise(const Engine& engine, const Problem& problem, const Arch& arch, double predicted) {
  Advice advice{problem.text(), predicted, {}};
  Problem best = problem;
  const auto take = [&](const std::string& field, const std::string& how, Problem next) {
    best = std::move(next);
    advice.fields.push_back({field, how, first_prediction(engine, best, arch)});
  };
  if (const Problem packed = engine.packed(problem, arch); !(packed == problem))
    take("pack=tiles", "reorder w once, at load: Engine::pack(), or pack_weights() on the host", packed);
  const auto offer = [&](const std::string& field, const std::string& how) {
    if (names_field(best, field)) return;
    if (auto next = with(best, field); next && changes_kernels(best, *next, arch)) take(field, how, std::move(*next));
  };
  offer("weights=constant", "w is complete before a launch is enqueued, and stays as it is");
  offer(kWorkspace, "33 MiB of device memory, zero when first used, for launches that follow each other");
  if (advice.fields.empty()) return std::nullopt;
  advice.problem = best.text();
  return advice;
}

std::string text(const Advice& advice) {
  std::string out = "These fields allow faster kernels:\n";
  double before = advice.predicted_microseconds;
  for (const AdvisedField& f : advice.fields) {
    const double ratio = before / f.predicted_microseconds;
    out += fmt::format("  {:<19} {}{}\n", f.field, f.how,
                       ratio > 1.005 ? fmt::format("; predicted {:.2f} times as fast", ratio) : "");
    before = f.predicted_microseconds;
  }
  out += fmt::format("  {}\n", advice.problem);
  const double all = advice.predicted_microseconds / before;
  return out + fmt::format(
                   "  predicted {:.2f} us instead of {:.2f}{}. What constant weights and a workspace gain, the "
                   "model does not know: measure with tune.",
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

std::string only_reference(const Problem& problem, const Arch& arch) {
  std::string reasons;
  const Problem bucket = problem.with_rows(kBuckets[bucket_index(problem.rows())]);
  for (const Family* family : families(problem.op())) {
    if (family->name() == "reference") continue;
    if (!family->candidates(bucket, arch).empty()) return {};
    std::string why = family->why_not(bucket, arch);
    if (why.empty()) why = "no tile fits shared memory";
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", family->name(), why);
  }
  if (reasons.empty()) return {};  // an operation that has no other kernel
  return fmt::format("only the reference kernel, which is slow, computes {} on {}{} ({})", problem.text(), arch.name,
                     faster_as_stored(bucket, arch) ? "; without pack=tiles others do" : "", reasons);
}

}  // namespace tilewright::cli
