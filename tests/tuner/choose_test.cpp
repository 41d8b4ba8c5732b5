// SPDX-License-Identifier: Apache-2.0
// choose.cpp: which stored choice answers, and what a search of a problem tries.
#include <algorithm>

#include <tilewright/store.h>

#include "tuner/choose/rank.h"
#include "tuner/engine_impl.h"
#include "tuner/keys.h"
#include "tuner/task.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("a choice that a search was led to answers the next one", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Device device = gpu.device();
  const Problem problem = tuner::bucketed(small());
  const std::vector<tuner::Ranked> ranked = tuner::rank(problem, target(), tuner::model_of(device));
  // One that no search begins with.
  const std::vector<int> first = tuner::select(ranked, TunePolicy().max_candidates);
  std::size_t late = 0;
  while (std::find(first.begin(), first.end(), static_cast<int>(late)) != first.end()) ++late;
  REQUIRE(late < ranked.size());
  Engine engine(options(dir / "c.db"));
  StoredChoice choice;
  choice.problem = problem.text(), choice.candidate = ranked[late].candidate, choice.microseconds = 5;
  REQUIRE(engine.store().put_choice(tuner::choice_key(device), choice));
  const TuneReport r = engine.tune(small(), device);
  CHECK(r.choice.candidate == choice.candidate);
  CHECK(r.choice.grade == Grade::exact);
  CHECK(r.measured == 0);
  CHECK(engine.stats().compiled == 0);
}

TEST_CASE("an imported choice is a hint: prepared until there is something better, measured before it is believed",
          "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Device device = gpu.device();
  const Problem problem = tuner::bucketed(small());
  gpu.serve(problem, target());
  const std::vector<tuner::Ranked> ranked = tuner::rank(problem, target(), tuner::model_of(device));
  const std::vector<int> first = tuner::select(ranked, TunePolicy().max_candidates);
  std::size_t late = 0;
  while (std::find(first.begin(), first.end(), static_cast<int>(late)) != first.end()) ++late;
  const Candidate hint = ranked.at(late).candidate, good = ranked.front().candidate;
  Engine engine(options(dir / "c.db"));
  {
    Engine other(options(dir / "pack.db"));
    StoredChoice choice;
    choice.problem = problem.text(), choice.candidate = hint, choice.microseconds = 1e-9;
    REQUIRE(other.store().put_choice(tuner::choice_key(device), choice));
    // Somebody else's times and failures: an unbeatable time, and a good candidate condemned.
    const Key key = tuner::outcome_key(device, compiler_version(CompileOptions::of(engine.options())));
    Outcome o;
    o.candidate = hint, o.kind = OutcomeKind::measured, o.microseconds = 1e-9, o.rounds = 9;
    REQUIRE(other.store().put_outcome(key, problem.text(), o, ""));
    o.candidate = good, o.kind = OutcomeKind::wrong, o.detail = "planted";
    REQUIRE(other.store().put_outcome(key, problem.text(), o, ""));
  }
  REQUIRE(engine.store().import_from(dir / "pack.db").added == 3);
  CHECK(engine.choose(problem, device).candidate == hint);
  CHECK(engine.choose(problem, device).grade == Grade::imported);
  const TuneReport r = engine.tune(small(), device);
  CHECK(r.measured > 1);
  CHECK(r.first == good);
  bool hint_tried = false;
  for (const Outcome& o : r.outcomes) {
    CHECK_FALSE(o.imported);
    CHECK_FALSE(o.stored);
    CHECK(o.microseconds != 1e-9);
    hint_tried = hint_tried || o.candidate == hint;
  }
  CHECK(hint_tried);
  CHECK(std::any_of(r.outcomes.begin(), r.outcomes.end(), [&](const Outcome& o) { return o.candidate == good; }));
  const auto now = engine.store().find_choice(tuner::choice_key(device), problem.text());
  REQUIRE(now);
  CHECK_FALSE(now->imported);
  CHECK(now->microseconds > 1e-6);
}

TEST_CASE("another version's choice is searched early, and not believed", "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine::Impl impl(options(""));
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f16 m=16 n=4096 k=4096 pack=tiles");
  const std::vector<tuner::Ranked> ranked = tuner::rank(problem, target(), tuner::model_of(device));
  const std::size_t before = impl.search_request(problem, device, {}).candidates.size();
  const std::vector<int> first = tuner::select(ranked, static_cast<int>(before));
  std::size_t late = 0;
  while (std::find(first.begin(), first.end(), static_cast<int>(late)) != first.end()) ++late;
  StoredChoice old;
  old.problem = problem.text(), old.candidate = ranked.at(late).candidate, old.microseconds = 1;
  REQUIRE(impl.store.put_choice(tuner::choice_key(device, "0.0.9"), old));
  CHECK(impl.choices(problem, device).current().candidate == ranked.front().candidate);
  const tuner::SearchRequest request = impl.search_request(problem, device, {});
  REQUIRE(request.candidates.size() == before + 1);
  CHECK(request.candidates[0] == ranked.front().candidate);
  CHECK(request.candidates[1] == old.candidate);
  old.candidate = {"mma", {{"knob_of_another_version", 1}}};
  REQUIRE(impl.store.put_choice(tuner::choice_key(device, "0.0.9"), old));
  CHECK(impl.search_request(problem, device, {}).candidates.size() == before);
}

TEST_CASE("a search looks at five of sixteen, then follows what it measured, and stays near the best from ten on",
          "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine::Impl impl(options(""));
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f16 m=16 n=4096 k=4096 pack=tiles");
  const std::vector<tuner::Ranked> ranked = tuner::rank(problem, target(), tuner::model_of(device));
  REQUIRE(ranked.size() > 20);
  const tuner::SearchRequest request = impl.search_request(problem, device, {});
  const std::vector<int> first = tuner::select(ranked, 5);
  REQUIRE(request.candidates.size() == first.size());
  for (std::size_t i = 0; i < first.size(); ++i)
    CHECK(request.candidates[i] == ranked[static_cast<std::size_t>(first[i])].candidate);
  TunePolicy twice;
  twice.max_candidates = 32;
  CHECK(impl.search_request(problem, device, twice).candidates.size() == 10);
  // The worse the model thought of one, the faster it is, so that where a search stays is not where the model would go.
  std::vector<Outcome> outcomes;
  std::vector<tuner::Measured> measured;
  std::vector<int> tried;
  for (int count = 1; count <= 12; ++count) {
    const int i = count + 5;
    Outcome o;
    o.candidate = ranked[static_cast<std::size_t>(i)].candidate, o.kind = OutcomeKind::measured,
    o.microseconds = 100 - count;
    outcomes.push_back(o), tried.push_back(i), measured.push_back({i, o.microseconds});
    const auto next = [&](bool narrow) {
      std::vector<Candidate> all;
      for (int at : tuner::refine(ranked, measured, tried, 4, narrow))
        all.push_back(ranked[static_cast<std::size_t>(at)].candidate);
      return all;
    };
    INFO(count << " measured");
    if (count == 9 || count == 10) CHECK(next(true) != next(false));
    CHECK(request.refine(outcomes, 4) == next(count >= 10));
  }
}

TEST_CASE("a neighbour's choice serves a size that was never measured, if it is legal there", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  Engine engine(options(dir / "c.db"));
  Device device = gpu.device();
  Problem near = Problem::parse("gemm x=f16 w=q4_0 y=f32 m=2 n=128 k=256");
  auto plan = engine.plan(small(), target());
  REQUIRE(plan.size() > 3);
  StoredChoice row;
  row.problem = small().text();
  row.candidate = plan[2].candidate;  // not what ranking would take
  row.microseconds = 3;
  REQUIRE(engine.store().put_choice(tuner::choice_key(device), row));
  CHECK(engine.choose(small(), device).grade == Grade::exact);
  Choice choice = engine.choose(near, device);
  CHECK(choice.grade == Grade::neighbour);
  CHECK(choice.candidate == row.candidate);
  // Another bucket, another format, or a size out of reach is no neighbour.
  for (const char* text : {"gemm x=f16 w=q4_0 y=f32 m=64 n=64 k=256", "gemm x=f16 w=q8_0 y=f32 m=2 n=64 k=256",
                           "gemm x=f16 w=q4_0 y=f32 m=2 n=4096 k=4096"})
    CHECK(engine.choose(Problem::parse(text), device).grade == Grade::ranked);
  row.candidate.knobs[0].second = 12345;  // by an older version, say
  REQUIRE(engine.store().put_choice(tuner::choice_key(device), row));
  CHECK(engine.choose(small(), device).grade == Grade::ranked);
  CHECK(engine.choose(near, device).grade == Grade::ranked);
}
