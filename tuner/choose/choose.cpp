// SPDX-License-Identifier: Apache-2.0
// Which candidate serves a problem: stored, a neighbour's, prewarmed, or ranked first.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <fmt/format.h>

#include <tilewright/error.h>
#include <tilewright/operation.h>

#include "templates/common/families.h"
#include "tuner/engine_impl.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

constexpr double kFarthest = 3;  // octaves of n * k: a tile that suits 8 times the work is no better than a guess

struct Distance {
  double octaves;
  bool same_bucket;
};

// To a stored problem that differs in its sizes alone; nothing to others.
std::optional<Distance> distance_to(const std::string& stored, const Problem& problem) {
  try {
    const Problem other = Problem::parse(stored);
    const double octaves = problem.distance(other);
    if (octaves < 0 || stored == problem.text()) return {};
    return Distance{octaves, problem.same_size_bucket(other)};
  } catch (const Error&) {
    return {};  // written by a version that knew other problems
  }
}

// Best first: those of the same size bucket, then by distance.
std::vector<tuner::Near> rows_near(Store& store, const Key& key, const Problem& problem) {
  std::vector<tuner::Near> near;
  for (StoredChoice& row : store.choices(key, problem.neighbours_prefix())) {
    const auto distance = distance_to(row.problem, problem);
    if (!distance || (!distance->same_bucket && distance->octaves > kFarthest)) continue;
    const Grade grade = !distance->same_bucket ? Grade::neighbour : row.imported ? Grade::imported : Grade::same_bucket;
    near.push_back({grade, distance->octaves, std::move(row)});
  }
  // Equal distances are decided by the text, so that every process takes the same.
  std::sort(near.begin(), near.end(), [](const tuner::Near& a, const tuner::Near& b) {
    return std::tie(a.grade, a.distance, a.row.problem) < std::tie(b.grade, b.distance, b.row.problem);
  });
  return near;
}

// The last family of an operation, if it has one: "reference", on CPUs "cpu_reference".
bool is_reference(const Family& family) { return family.name().ends_with("reference"); }

// Why each of the families takes no candidate. Families that say the same share a sentence.
std::string refusals(const Problem& problem, const Arch& arch, std::span<const Family* const> families) {
  std::vector<std::pair<std::string, std::string>> said;  // names, reason
  for (const Family* f : families) {
    std::string why = f->why_not(problem, arch);
    if (why.empty()) why = "no tile fits shared memory";
    const auto same = std::find_if(said.begin(), said.end(), [&](const auto& s) { return s.second == why; });
    if (same == said.end())
      said.emplace_back(f->name(), std::move(why));
    else
      same->first.append(", ").append(f->name());
  }
  std::string text;
  for (const auto& [names, why] : said) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", names, why);
  return text;
}

}  // namespace

void tuner::throw_unsupported(const Problem& problem, const Arch& arch) {
  std::string reasons = refusals(problem, arch, families(problem.op(), arch));
  if (reasons.empty()) reasons = fmt::format("{} has no kernels for CPUs yet", problem.op());
  throw Error(ErrorCode::unsupported, "problem", problem.text() + " on " + arch.name, "is not supported: " + reasons);
}

bool tuner::has_kernels(const Problem& problem, const Arch& arch) {
  const Problem bucket = bucketed(problem);
  const auto all = families(bucket.op(), arch);
  return std::any_of(all.begin(), all.end(),
                     [&](const Family* f) { return !is_reference(*f) && !f->candidates(bucket, arch).empty(); });
}

Problem tuner::packed_for(const Problem& problem, const Arch& arch) {
  if (!problem.operation().repack(problem) || has_kernels(problem, arch)) return problem;
  // A problem without the field is one whose weights lie as their format stores them.
  std::string text = problem.text();
  if (const std::size_t at = text.find(" pack="); at != text.npos)
    text.erase(at, std::min(text.find(' ', at + 1), text.size()) - at);
  try {
    const Problem stored = Problem::parse(text);
    return stored.operation().packed(stored, arch).value_or(stored);
  } catch (const Error&) {
    return problem;  // another of its fields is allowed with packed weights only
  }
}

std::string only_reference(const Problem& problem, const Arch& arch) {
  const auto all = families(problem.op(), arch);
  // An operation may have no other kernel, and the reference may refuse the problem, too.
  if (all.size() < 2 || !is_reference(*all.back()) || tuner::has_kernels(problem, arch)) return {};
  const Problem bucket = tuner::bucketed(problem);
  if (!all.back()->why_not(bucket, arch).empty()) return {};
  std::string reasons = refusals(bucket, arch, all.first(all.size() - 1));
  for (const Recommendation& r : problem.operation().recommended(bucket, arch))
    if (tuner::has_kernels(r.problem, arch)) {
      reasons = fmt::format("with {} others do", r.field);
      break;
    }
  return fmt::format("only the reference kernel, which is slow, computes {} on {} ({})", problem.text(), arch.name,
                     reasons);
}

Source Engine::Impl::source(const Problem& problem, const Arch& arch, const Candidate& candidate) const {
  return tuner::source_of(problem, arch, candidate, options.templates);
}

std::vector<Outcome> Engine::Impl::outcomes(const std::string& key, const Device& device) {
  std::vector<Outcome> all = store.outcomes(tuner::outcome_key(device, builder.compiler(device.arch())), key);
  std::erase_if(all, [](const Outcome& o) { return o.imported; });  // somebody else's failures rule nothing out here
  return all;
}

std::optional<Choice> Engine::Impl::stored_choice(const Problem& problem, const Device& device,
                                                  const tuner::History& history) {
  if (auto row = store.find_choice(tuner::choice_key(device), problem.text())) {
    const std::string why =
        history.ruled_out(row->candidate) ? "it failed here since" : illegal(problem, device.arch(), row->candidate);
    if (why.empty() && row->imported) return Choice{row->candidate, Grade::imported, 0};
    if (why.empty()) return Choice{row->candidate, Grade::exact, row->microseconds};
    log(LogLevel::info,
        fmt::format("{}: the stored choice {} is ignored: {}", problem.text(), row->candidate.text(), why));
  }
  const std::optional<tuner::Near> other = near(problem, device, history, false);
  if (!other) return std::nullopt;
  return Choice{other->row.candidate, other->grade, other->grade == Grade::same_bucket ? other->row.microseconds : 0};
}

std::optional<tuner::Near> Engine::Impl::near(const Problem& problem, const Device& device,
                                              const tuner::History& history, bool bucket_only) {
  // Legality last: it lists every candidate of a family.
  for (tuner::Near& n : rows_near(store, tuner::choice_key(device), problem))
    if ((!bucket_only || n.grade == Grade::same_bucket) && !history.ruled_out(n.row.candidate) &&
        illegal(problem, device.arch(), n.row.candidate).empty())
      return std::move(n);
  return std::nullopt;
}

std::optional<tuner::Near> Engine::Impl::tuned_in_bucket(const Problem& problem, const Device& device) {
  if (problem.size_bucket() == 0 || store.find_choice(tuner::choice_key(device), problem.text())) return std::nullopt;
  return near(problem, device, history(problem, device), true);
}

std::vector<Candidate> Engine::Impl::prewarmed(const Problem& problem, const Arch& arch) {
  std::vector<Candidate> candidates;
  const Key key = tuner::prewarm_key(arch);
  auto list = store.find_list(key, problem.text());
  if (!list && problem.size_bucket() > 0) {
    double nearest = std::numeric_limits<double>::infinity();
    for (CandidateList& other : store.lists(key, problem.neighbours_prefix())) {
      const auto distance = distance_to(other.problem, problem);
      if (distance && distance->same_bucket && distance->octaves < nearest)
        nearest = distance->octaves, list = std::move(other);
    }
  }
  if (!list) return candidates;
  for (RowCandidate& c : list->candidates) {
    if (!illegal(problem, arch, c.candidate).empty()) continue;
    // Only what is still there, and still what would be built: the list must not bring a compilation back.
    if (builder.find(source(problem, arch, c.candidate), arch, nullptr)) candidates.push_back(std::move(c.candidate));
  }
  return candidates;
}

void Engine::Impl::note_prewarmed(const std::string& key, const Arch& arch, const std::vector<Candidate>& candidates) {
  if (candidates.empty()) return;
  CandidateList list;
  list.problem = key;
  for (const Candidate& c : candidates) list.candidates.push_back({c});
  store.put_list(tuner::prewarm_key(arch), list);
}

tuner::Choices Engine::Impl::choices(const Problem& problem, const Device& device) {
  const tuner::History known = history(problem, device);
  std::vector<Choice> first;
  if (auto stored = stored_choice(problem, device, known)) first.push_back(std::move(*stored));
  // Measured here, so it compiled here; only a store from another compiler needs more.
  if (first.empty() || first.front().grade > Grade::same_bucket)
    for (Candidate& c : prewarmed(problem, device.arch()))
      if (!known.ruled_out(c)) first.push_back({std::move(c), Grade::ranked, 0});
  const auto rest = [this, problem, device, known] {
    return ranked_choices(ranking(problem, device), problem, device, known);
  };
  if (!first.empty()) return {std::move(first), rest};
  // The first of the rest, which are ranked only if it cannot be used.
  std::optional<Candidate> best = tuner::ranked_first(problem, device.arch(), tuner::model_of(device));
  if (!best) tuner::throw_unsupported(problem, device.arch());
  if (known.ruled_out(*best)) return {rest(), nullptr};
  return {{{std::move(*best), Grade::ranked, 0}}, rest};
}

Engine::Impl::Ranking Engine::Impl::ranking(const Problem& problem, const Device& device) {
  auto ranked =
      std::make_shared<const std::vector<tuner::Ranked>>(tuner::rank(problem, device.arch(), tuner::model_of(device)));
  if (ranked->empty()) tuner::throw_unsupported(problem, device.arch());
  return ranked;
}

std::vector<Choice> Engine::Impl::ranked_choices(const Ranking& ranked, const Problem& problem, const Device& device,
                                                 const tuner::History& history) {
  std::vector<Choice> order;
  const auto add = [&](const Candidate& c) { order.push_back({c, Grade::ranked, 0}); };
  // Enough for the first few to spill or be refused; the reference stands behind them. What a search found wanting here
  // stays out, whether or not the search ended with a choice.
  for (int i : tuner::select(*ranked, 6))
    if (const Candidate& c = (*ranked)[static_cast<std::size_t>(i)].candidate; !history.ruled_out(c)) add(c);
  const Candidate& reference = ranked->back().candidate;
  if (!history.wrong(reference) && (order.empty() || order.back().candidate != reference)) add(reference);
  if (order.empty()) tuner::throw_none_right("problem", problem.text(), outcomes(problem.text(), device));
  return order;
}

tuner::SearchRequest Engine::Impl::search_request(const Problem& problem, const Device& device,
                                                  const TunePolicy& policy) {
  const Ranking ranked = ranking(problem, device);
  tuner::SearchRequest request;
  request.policy = policy;
  request.fallback = ranked->back().candidate;
  request.offers = [ranked](const Candidate& candidate) {
    return std::any_of(ranked->begin(), ranked->end(),
                       [&](const tuner::Ranked& r) { return r.candidate == candidate; });
  };
  auto take = [&](int most) {
    for (int i : tuner::select(*ranked, most))
      request.candidates.push_back((*ranked)[static_cast<std::size_t>(i)].candidate);
  };
  if (policy.exhaustive) {
    take(static_cast<int>(ranked->size()));
    return request;
  }
  // After a prewarm, tuning only times: what was compiled elsewhere is the space, in today's order.
  std::vector<Candidate> ready = prewarmed(problem, device.arch());
  for (const tuner::Ranked& r : *ranked)
    if (static_cast<int>(request.candidates.size()) < policy.max_candidates &&
        std::find(ready.begin(), ready.end(), r.candidate) != ready.end())
      request.candidates.push_back(r.candidate);
  if (!request.candidates.empty()) return request;
  // The first measurements cover the space, the others follow what they teach, the last ones close to the best.
  take((5 * policy.max_candidates + 15) / 16);
  // A choice of somebody else's, or of another version of the library, is a hint: measured early, beside the ranked
  // first.
  const auto hint = [&](const std::optional<StoredChoice>& row) {
    if (row && policy.max_candidates > 1 && request.offers(row->candidate) &&
        std::find(request.candidates.begin(), request.candidates.end(), row->candidate) == request.candidates.end())
      request.candidates.insert(request.candidates.begin() + 1, row->candidate);
  };
  for (const OtherVersion& v : tuner::other_versions(store))
    if (v.choices > 0) hint(store.find_choice(tuner::choice_key(device, v.version), problem.text()));
  if (auto row = store.find_choice(tuner::choice_key(device), problem.text()); row && row->imported) hint(row);
  request.refine = [ranked, close = 5 * policy.max_candidates / 8](const std::vector<Outcome>& outcomes, int most) {
    std::vector<tuner::Measured> measured;
    std::vector<int> tried;
    for (int i = 0; i < static_cast<int>(ranked->size()); ++i)
      for (const Outcome& o : outcomes)
        if (o.candidate == (*ranked)[static_cast<std::size_t>(i)].candidate) {
          tried.push_back(i);
          if (o.kind == OutcomeKind::measured && o.microseconds > 0) measured.push_back({i, o.microseconds});
        }
    std::vector<Candidate> next;
    for (int i : tuner::refine(*ranked, measured, tried, most, static_cast<int>(measured.size()) >= close))
      next.push_back((*ranked)[static_cast<std::size_t>(i)].candidate);
    return next;
  };
  return request;
}

}  // namespace tilewright
