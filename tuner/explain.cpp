// SPDX-License-Identifier: Apache-2.0
// Why this kernel: readable text for `tilewright cache explain`.
#include <fmt/format.h>

#include <tilewright/error.h>

#include "templates/families.h"
#include "tuner/engine_impl.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

std::string indented(const std::string& text) {
  std::string out = "  ";
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] == '\n' && i + 1 < text.size()) out += "  ";
  }
  if (out.empty() || out.back() != '\n') out += '\n';
  return out;
}

const char* meaning(Grade grade) {
  switch (grade) {
    case Grade::exact: return "measured for this problem";
    case Grade::same_bucket: return "measured for this problem's bucket";
    case Grade::imported: return "measured by somebody else (cache import), not yet on this machine";
    case Grade::neighbour: return "measured for the nearest size with these formats and rows";
    case Grade::ranked: return "not measured: the cost model's first, or what a prewarm compiled";
  }
  return "";
}

// The problem that stands for all of its bucket, or which sizes share choices with it.
std::string bucket_text(const Problem& problem) {
  const std::int64_t bucket = problem.size_bucket();
  return bucket == 0
             ? problem.text()
             : fmt::format("all sizes with {} to {} {}", bucket / 2 + 1, bucket, contract_for(problem).rows_name);
}

std::string families_text(const Problem& problem, const Arch& arch) {
  std::string out = "families:\n";
  for (const Family* f : families(problem.op(), arch)) {
    std::string why = f->why_not(problem, arch);
    out += why.empty() ? fmt::format("  {}: {} candidates\n", f->name(), f->candidates(problem, arch).size())
                       : fmt::format("  {}: no: {}\n", f->name(), why);
  }
  return out;
}

std::string ranking_text(const std::vector<tuner::Ranked>& ranked) {
  std::string out = "ranking (predicted us: memory, l2, matrix, scalar alone):\n";
  for (std::size_t i = 0; i < ranked.size() && i < 8; ++i) {
    const tuner::Prediction& p = ranked[i].prediction;
    out += fmt::format("  {}. {}: {:.1f} us ({:.1f}, {:.1f}, {:.1f}, {:.1f}; {:.0f} waves)\n", i + 1,
                       ranked[i].candidate.text(), p.microseconds, p.memory_us, p.l2_us, p.mma_us, p.alu_us, p.waves);
  }
  if (ranked.size() > 8) out += fmt::format("  ... {} more\n", ranked.size() - 8);
  return out;
}

std::string ranges_text(const std::vector<RowRange>& ranges) {
  std::string out = "by number of rows (expected us at the last of a range):\n";
  for (const RowRange& r : ranges)
    out += fmt::format("  {}{}: {:.1f} us{}, {}\n", r.first,
                       r.last == 0         ? " and more"
                       : r.last == r.first ? ""
                                           : fmt::format(" to {}", r.last),
                       r.microseconds, r.measured ? "" : " (predicted)", r.candidate.text());
  return out;
}

std::string history_text(Store& store, const Key& key, const std::string& problem) {
  std::string out;
  for (const Outcome& o : store.outcomes(key, problem))
    out += o.kind == OutcomeKind::measured
               ? fmt::format("  {}: {:.2f} us ({} rounds{})\n", o.candidate.text(), o.microseconds, o.rounds,
                             o.imported ? ", imported" : "")
               : fmt::format("  {}: {}: {}\n", o.candidate.text(), to_string(o.kind), o.detail);
  return out.empty() ? "measurements: none on this device, driver and compiler\n" : "measurements:\n" + out;
}

}  // namespace

std::string Engine::explain(const Problem& asked, const Arch& arch, const Device* device) const {
  if (device && std::string_view(device->arch().name) != arch.name)
    throw Error(ErrorCode::invalid_argument, "arch", arch.name,
                fmt::format("the device's own target is {}", device->arch().name));
  Problem problem = tuner::bucketed(asked);
  std::string out =
      fmt::format("problem: {}\nbucket: {}\ntarget: {}\ncache: {}{}\n", asked.text(), bucket_text(problem), arch.name,
                  impl_->store.path().empty() ? "memory" : impl_->store.path(),
                  impl_->store.degraded() ? " (unusable: in memory)" : "");
  auto ranked = tuner::rank(problem, arch, device ? tuner::model_of(*device) : tuner::model_of(arch));
  Candidate candidate;
  if (device && !ranked.empty()) {
    Choice choice = choose(asked, *device);
    candidate = choice.candidate;
    out +=
        fmt::format("choice: {}\ngrade: {} ({})\n", candidate.text(), to_string(choice.grade), meaning(choice.grade));
    if (choice.microseconds > 0) out += fmt::format("measured: {:.2f} us\n", choice.microseconds);
    const auto near = impl_->tuned_in_bucket(problem, *device);
    if (near) out += fmt::format("measured for: {}\n", near->row.problem);
    if (!problem.fixed_rows()) out += ranges_text(ranges(asked, *device));
    out += "choice key:\n" + indented(tuner::choice_key(*device).transcript());
    out += history_text(impl_->store, tuner::outcome_key(*device, impl_->builder.compiler(device->arch())),
                        near ? near->row.problem : problem.text());
  } else if (!ranked.empty()) {
    candidate = ranked.front().candidate;
    out += fmt::format("choice: {}\ngrade: ranked (no device was named, and a stored choice belongs to one)\n",
                       candidate.text());
  } else {
    out += "choice: none\n";
  }
  if (!ranked.empty()) {
    const Source source = impl_->source(problem, arch, candidate);
    const Key key = impl_->builder.key(source, arch);
    const char* state = impl_->builder.find(key)                     ? "stored"
                        : impl_->builder.find(source, arch, nullptr) ? "stored, as another NVRTC compiled it"
                                                                     : "not compiled yet";
    out += fmt::format("binary: {}\nbinary key {}:\n{}", state, key.hash().substr(0, 12), indented(key.transcript()));
    out += ranking_text(ranked);
  }
  return out + families_text(problem, arch);
}

}  // namespace tilewright
