// SPDX-License-Identifier: Apache-2.0
// Why this kernel: what `tilewright cache explain` shows.
#include <fmt/format.h>

#include <algorithm>

#include <tilewright/error.h>

#include "support/must_be.h"
#include "templates/common/families.h"
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

std::string families_text(const std::vector<Explanation::FamilyAnswer>& families) {
  std::string out = "families:\n";
  for (const Explanation::FamilyAnswer& f : families)
    out += f.why_not.empty() ? fmt::format("  {}: {} candidates\n", f.family, f.candidates)
                             : fmt::format("  {}: no: {}\n", f.family, f.why_not);
  return out;
}

std::string ranking_text(const std::vector<Explanation::Ranked>& ranking) {
  constexpr std::size_t kShown = 8;
  std::string out = "ranking (predicted us: memory, l2, matrix, scalar alone):\n";
  for (std::size_t i = 0; i < ranking.size() && i < kShown; ++i) {
    const Explanation::Ranked& r = ranking[i];
    out += fmt::format("  {}. {}: {:.1f} us ({:.1f}, {:.1f}, {:.1f}, {:.1f}; {:.0f} waves)\n", i + 1,
                       r.candidate.text(), r.microseconds, r.memory_us, r.l2_us, r.matrix_us, r.scalar_us, r.waves);
  }
  if (ranking.size() > kShown) out += fmt::format("  ... {} more\n", ranking.size() - kShown);
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

std::string outcomes_text(const std::vector<Outcome>& outcomes) {
  std::string out;
  for (const Outcome& o : outcomes)
    out += o.kind == OutcomeKind::measured
               ? fmt::format("  {}: {:.2f} us ({} rounds{})\n", o.candidate.text(), o.microseconds, o.rounds,
                             o.imported ? ", imported" : "")
               : fmt::format("  {}: {}: {}\n", o.candidate.text(), to_string(o.kind), o.detail);
  return out.empty() ? "measurements: none on this device, driver and compiler\n" : "measurements:\n" + out;
}

std::string stored_text(const Explanation& e) {
  std::string out = fmt::format("device: none of {} was given; the ranking is for a typical one\n", e.target);
  out += e.stored.empty() ? "stored choices: none of any device\n" : "stored choices, each for its device:\n";
  for (const Explanation::Stored& s : e.stored)
    out += fmt::format("  {}: {}{}{}; {}\n", s.device, s.candidate.text(),
                       s.microseconds > 0 ? fmt::format(", {:.2f} us", s.microseconds) : "",
                       s.imported ? ", imported" : "", s.binary) +
           (s.measured_for == e.problem ? "" : fmt::format("    measured for {}\n", s.measured_for));
  out += e.prewarmed.empty() ? "prewarmed: nothing\n" : "prewarmed (compiled and stored, not measured):\n";
  for (const Candidate& c : e.prewarmed) out += fmt::format("  {}\n", c.text());
  return out;
}

std::string choice_text(const Explanation& e) {
  if (!e.choice) return "choice: none\n";
  if (!e.device)
    return fmt::format("choice: {}\ngrade: ranked (no device was named, and a stored choice belongs to one)\n",
                       e.choice->candidate.text());
  std::string out = fmt::format("choice: {}\ngrade: {} ({})\n", e.choice->candidate.text(), to_string(e.choice->grade),
                                meaning(e.choice->grade));
  if (e.choice->microseconds > 0) out += fmt::format("measured: {:.2f} us\n", e.choice->microseconds);
  return out;
}

}  // namespace

std::string Explanation::text(bool keys) const {
  std::string out = fmt::format("problem: {}\nbucket: {}\ntarget: {}\ncache: {}{}\n", problem, bucket, target, cache,
                                cache_degraded ? " (unusable: in memory)" : "");
  if (!device) out += stored_text(*this);
  out += choice_text(*this);
  if (!measured_for.empty()) out += fmt::format("measured for: {}\n", measured_for);
  if (!ranges.empty()) out += ranges_text(ranges);
  if (keys && choice_key) out += "choice key:\n" + indented(choice_key->transcript());
  if (device && choice) out += outcomes_text(outcomes);
  if (choice) out += fmt::format("binary: {}\n", binary);
  if (keys && binary_key)
    out += fmt::format("binary key {}:\n{}", binary_key->hash().substr(0, 12), indented(binary_key->transcript()));
  if (!ranking.empty()) out += ranking_text(ranking);
  return out + families_text(families);
}

std::string Engine::Impl::binary_state(const Source& source, const Arch& arch) {
  return builder.find(builder.key(source, arch)) ? "stored"
         : builder.find(source, arch, nullptr)   ? "stored, as another NVRTC compiled it"
                                                 : "not compiled yet";
}

std::vector<Explanation::Stored> Engine::Impl::stored_choices(const Problem& problem, const Arch& arch) {
  std::vector<Explanation::Stored> found;
  for (const auto& [key, row] : store.all_choices({.target = arch.name})) {
    const auto field = [&, &fields = key.fields()](std::string_view tag) {
      const auto at = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == tag; });
      return at == fields.end() ? std::string() : at->second;
    };
    if (field("device").empty() || field("library") != tuner::kLibraryVersion) continue;
    try {
      const Problem other = Problem::parse(row.problem);
      if (other != problem && !problem.same_size_bucket(other)) continue;
      const std::string why = illegal(problem, arch, row.candidate);
      found.push_back({field("device"), row.candidate, row.microseconds, row.problem, row.imported,
                       why.empty() ? binary_state(source(problem, arch, row.candidate), arch) : "unusable: " + why});
    } catch (const Error&) {
      // Written by a version that knew other problems.
    }
  }
  return found;
}

Explanation Engine::explanation(const Problem& asked, const Arch& arch, const Device* device) const {
  if (device && std::string_view(device->arch().name) != arch.name)
    throw must_be("arch", arch.name, fmt::format("{}, the device's own target", device->arch().name));
  const Problem problem = tuner::bucketed(asked);
  Explanation e;
  e.problem = asked.text();
  e.bucket = bucket_text(problem);
  e.target = arch.name;
  e.cache = impl_->store.path().empty() ? "memory" : impl_->store.path();
  e.cache_degraded = impl_->store.degraded();
  e.device = device != nullptr;
  for (const Family* f : families(problem.op(), arch)) {
    std::string why = f->why_not(problem, arch);
    const std::size_t candidates = why.empty() ? f->candidates(problem, arch).size() : 0;
    e.families.push_back({std::string(f->name()), candidates, std::move(why)});
  }
  const auto ranked = tuner::rank(problem, arch, device ? tuner::model_of(*device) : tuner::model_of(arch));
  if (ranked.empty()) return e;
  for (const tuner::Ranked& r : ranked) {
    const tuner::Prediction& p = r.prediction;
    e.ranking.push_back({r.candidate, p.microseconds, p.memory_us, p.l2_us, p.mma_us, p.alu_us, p.waves});
  }
  if (device) {
    e.choice = choose(asked, *device);
    const auto near = impl_->tuned_in_bucket(problem, *device);
    if (near) e.measured_for = near->row.problem;
    if (!problem.fixed_rows()) e.ranges = ranges(asked, *device);
    e.choice_key = tuner::choice_key(*device);
    e.outcomes = impl_->store.outcomes(tuner::outcome_key(*device, impl_->builder.compiler(device->arch())),
                                       near ? near->row.problem : problem.text());
  } else {
    e.choice = Choice{ranked.front().candidate, Grade::ranked, 0};
    e.stored = impl_->stored_choices(problem, arch);
    e.prewarmed = impl_->prewarmed(problem, arch);
  }
  const Source source = impl_->source(problem, arch, e.choice->candidate);
  e.binary_key = impl_->builder.key(source, arch);
  e.binary = impl_->binary_state(source, arch);
  return e;
}

}  // namespace tilewright
