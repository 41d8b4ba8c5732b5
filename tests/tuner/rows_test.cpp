// SPDX-License-Identifier: Apache-2.0
// Which candidate serves which number of rows: steps, the stored table, estimates, decisions, and what is worth doing
// next in a search of all rows. No device.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/catch.h"
#include "tuner/rows/row_space.h"
#include "tuner/rows/rows.h"

using namespace tilewright;
using namespace tilewright::tuner;

namespace {

const Arch& hopper() { return arch("sm_90a"); }
Problem layer() { return Problem::parse("gemm x=bf16 w=bf16 y=bf16 m=1 n=4096 k=4096 workspace=34603008"); }

// The first `count` ranked candidates for some rows.
std::vector<Candidate> ranked(const Problem& problem, std::int64_t rows, std::size_t count) {
  std::vector<Candidate> list;
  for (Ranked& r : rank(problem.with_rows(rows), hopper(), model_of(hopper())))
    if (list.size() < count) list.push_back(std::move(r.candidate));
  return list;
}

}  // namespace

TEST_CASE("row steps cover every number of rows, in order, finely", "[rows]") {
  for (std::int64_t rows = 1; rows <= kMostStepRows; ++rows) {
    const int step = row_step(rows);
    INFO(rows << " rows, step " << step);
    REQUIRE((step >= 0 && step < kRowSteps - 1));
    CHECK(step_rows(step) >= rows);
    CHECK((step == 0 || step_rows(step - 1) < rows));
    // A step is an eighth of its rows at most, and of many rows a hundredth.
    CHECK((rows <= 64 || static_cast<double>(step_rows(step) - rows) < 0.125 * static_cast<double>(rows)));
  }
  CHECK(row_step(0) == 0);
  CHECK(row_step(kMostStepRows + 1) == kRowSteps - 1);
  CHECK(row_step(std::int64_t{1} << 40) == kRowSteps - 1);
  for (const std::int64_t rows : tuning_rows()) CHECK(step_rows(row_step(rows)) == rows);
  CHECK(tuning_rows().back() == kMostStepRows);
}

TEST_CASE("a table of rows survives being stored, and nothing damaged is taken for one", "[rows]") {
  RowTable table;
  for (const Candidate& c : ranked(layer(), 256, 3)) table.candidates.push_back({c, 256, {{64, 12.5}, {8192, 1234.0}}});
  for (int s = 0; s < kRowSteps; ++s) table.steps[static_cast<std::size_t>(s)] = static_cast<std::uint8_t>(s / 200);
  const CandidateList list = table.list(layer().with_rows(8), "tuned");
  CHECK(list.problem == layer().text());
  CHECK(list.inputs == "tuned");
  Store store;
  const Key key = Key().add("device", "any");
  REQUIRE(store.put_list(key, list));
  const std::optional<RowTable> back = RowTable::of(*store.find_list(key, list.problem));
  REQUIRE(back);
  REQUIRE(back->candidates.size() == 3);
  CHECK(back->steps == table.steps);
  CHECK(back->candidates[1].candidate == table.candidates[1].candidate);
  CHECK(back->candidates[1].listed == 256);
  CHECK(back->candidates[1].times == table.candidates[1].times);

  const auto refused = [&](auto change) {
    CandidateList other = list;
    change(other);
    return !RowTable::of(std::move(other));
  };
  CHECK(refused([](CandidateList& l) { l.steps.clear(); }));  // what prewarm() compiled
  CHECK(refused([](CandidateList& l) { l.steps.pop_back(); }));
  CHECK(refused([](CandidateList& l) { l.steps.push_back(0); }));
  CHECK(refused([](CandidateList& l) { l.steps[7] = 3; }));  // no such candidate
  CHECK(refused([](CandidateList& l) { l.candidates.resize(RowTable::kMostCandidates + 1); }));
}

TEST_CASE("an estimate is the known time, and between known times the model with their errors", "[rows]") {
  RowModel model(layer(), hopper(), model_of(hopper()));
  RowCandidate c{ranked(layer(), 1024, 1)[0], 1024, {}};
  CHECK(model.estimate(c, 1000) == model.predicted(c.candidate, 1000));
  c.times[1024] = 2 * model.predicted(c.candidate, 1024);
  CHECK(model.estimate(c, 1024) == c.times[1024]);
  CHECK(model.estimate(c, 4096) == Approx(2 * model.predicted(c.candidate, 4096)));
  c.times[4096] = 3 * model.predicted(c.candidate, 4096);
  CHECK(model.estimate(c, 2048) == Approx(std::sqrt(6.0) * model.predicted(c.candidate, 2048)));
  CHECK(model.estimate(c, 8192) == Approx(3 * model.predicted(c.candidate, 8192)));
  // Never above a time at more rows.
  c.times[2048] = 0.9 * c.times[1024];
  CHECK(model.estimate(c, 1100) <= c.times[2048]);
}

TEST_CASE("each step gets what is fastest there, by as few binaries as lose nothing", "[rows]") {
  const std::vector<Candidate> list = ranked(layer(), 2048, 3);
  RowModel model(layer(), hopper(), model_of(hopper()));
  RowTable table;
  for (const Candidate& c : list) table.candidates.push_back({c, 2048, {}});
  for (int s = 0; s < kRowSteps; ++s) {  // at every step, so that nothing is the model's
    const std::int64_t rows = step_rows(s);
    table.candidates[0].times[rows] = rows <= 500 ? 10 : 30;
    table.candidates[1].times[rows] = rows <= 500 ? 20 : 15;
    table.candidates[2].times[rows] = rows <= 500 ? 10.05 : 30;  // within what thinning may lose
  }
  decide(table, model);
  for (int s = 0; s < kRowSteps - 1; ++s) {
    const std::uint8_t serves = table.steps[static_cast<std::size_t>(s)];
    INFO(step_rows(s) << " rows: " << int(serves));
    if (step_rows(s) <= 496) CHECK(serves == 0);
    if (step_rows(s) > 544) CHECK(serves == 1);
  }
  const std::vector<RowRange> ranges = ranges_of(table, model);
  REQUIRE(ranges.size() == 2);
  CHECK(ranges[0].first == 1);
  CHECK(ranges[0].last + 1 == ranges[1].first);
  CHECK(ranges[1].last == 0);
  CHECK(ranges[0].measured);
  table.drop_unused(true);
  CHECK(table.candidates.size() == 3);
  table.drop_unused(false);
  REQUIRE(table.candidates.size() == 2);
  CHECK(table.candidates[table.steps[0]].candidate == list[0]);
  CHECK(table.candidates[table.steps[kRowSteps - 1]].candidate == list[1]);
}

TEST_CASE("above the steps, tiles in waves decide", "[rows]") {
  // Tiles of 256 rows by 132 at a time and of 128 by 132, which are less efficient but waste less of a last wave.
  jit::WaveCost large{0, 256, 32, 132, 1, 10}, small{1, 128, 32, 132, 1, 5.2};
  CHECK(large.at(256 * 132) == Approx(320));
  CHECK(large.at(256 * 132) < small.at(256 * 132));
  CHECK(small.at(1025) < large.at(1025));
  jit::WaveCost half = large, shared = large;
  half.last_wave = 0.5, shared.last_wave = 0;
  const std::int64_t rows = 256 * 5;  // 160 tiles: a wave and 28 tiles
  CHECK(large.at(rows) == Approx(20));
  CHECK(half.at(rows) == Approx(15));
  CHECK(shared.at(rows) == Approx(10 * 160.0 / 132));
  const std::int64_t any = std::numeric_limits<std::int64_t>::max();  // as an argument may say before it is refused
  CHECK(small.at(any) > small.at(kMostStepRows));
  CHECK(small.at(any) > large.at(any));
  // Serving has them for the candidates of the last steps, each at its estimate there.
  RowModel model(layer(), hopper(), model_of(hopper()));
  RowTable table;
  for (const Candidate& c : ranked(layer(), 4096, 2)) table.candidates.push_back({c, 4096, {{8192, 100}}});
  for (int s = 0; s < kRowSteps; ++s) table.steps[static_cast<std::size_t>(s)] = s >= 440;
  const jit::Serving serving = serving_of(table, {nullptr, nullptr}, model);
  REQUIRE(serving.beyond.size() == 2);
  for (const jit::WaveCost& cost : serving.beyond) CHECK(cost.at(kMostStepRows) == Approx(100));
}

TEST_CASE("between the buckets a candidate is added where the model promises enough", "[rows]") {
  RowModel model(layer(), hopper(), model_of(hopper()));
  RowTable table;
  table.candidates.push_back({ranked(layer(), 4096, 1)[0], 4096, {}});
  std::vector<std::int64_t> asked;
  add_between_buckets(table, model, [&](std::int64_t rows) -> std::optional<Candidate> {
    asked.push_back(rows);
    return ranked(layer(), rows, 1)[0];
  });
  CHECK(asked.size() == 6);
  CHECK(table.candidates.size() > 1);
  const std::size_t before = table.candidates.size();
  add_between_buckets(table, model, [&](std::int64_t rows) { return std::optional(ranked(layer(), rows, 1)[0]); });
  CHECK(table.candidates.size() == before);  // nothing promises more than what is there
}

TEST_CASE("a search of all rows covers them by few binaries, and follows what it measures", "[rows]") {
  const std::vector<std::int64_t> points = tuning_rows();
  RowSpace space(layer(), hopper(), model_of(hopper()), points, 24);
  REQUIRE(space.contenders().size() > 50);
  const std::vector<int> first = space.next(12);
  REQUIRE(first.size() >= 8);
  // They serve few tokens and many.
  int least = 1 << 20, most = 0;
  for (const int i : first) {
    const int tile = space.contenders()[static_cast<std::size_t>(i)].ranked.traits.tile_rows;
    least = std::min(least, tile), most = std::max(most, tile);
  }
  CHECK(least <= 96);
  CHECK(most >= 192);
  // What turns out twice as slow as predicted raises what is expected of those like it.
  RowContender& slow = space.contenders()[static_cast<std::size_t>(first[0])];
  slow.tried = true;
  const std::vector<int> where = space.worth_measuring(first[0], 3);
  REQUIRE_FALSE(where.empty());
  for (const int p : where) space.record(first[0], p, 2 * slow.predicted[static_cast<std::size_t>(p)]);
  for (const int p : where) CHECK(space.estimate(first[0], p) == 2 * slow.predicted[static_cast<std::size_t>(p)]);
  for (int i = 0; i < static_cast<int>(space.contenders().size()); ++i)
    CHECK(space.estimate(i, where[0]) >=
          space.contenders()[static_cast<std::size_t>(i)].predicted[static_cast<std::size_t>(where[0])]);
  // Measured points are not asked for again, nor points right beside them.
  for (const int p : space.worth_measuring(first[0], 100))
    for (const int q : where) {
      const double a = static_cast<double>(points[static_cast<std::size_t>(p)]),
                   b = static_cast<double>(points[static_cast<std::size_t>(q)]);
      CHECK(std::max(a, b) / std::min(a, b) >= 1.07);
    }
  // Once something is a thousand times as fast as predicted, only what is much like it may be as fast.
  for (int p = 0; p < static_cast<int>(points.size()); ++p)
    space.record(first[1], p, 0.001 * slow.predicted[static_cast<std::size_t>(p)]);
  space.contenders()[static_cast<std::size_t>(first[1])].tried = true;
  const Candidate& fast = space.contenders()[static_cast<std::size_t>(first[1])].ranked.candidate;
  for (const int i : space.next(4)) {
    const Candidate& next = space.contenders()[static_cast<std::size_t>(i)].ranked.candidate;
    INFO(next.text() << " after " << fast.text());
    CHECK(next.family == fast.family);
    CHECK(next.knobs.size() == fast.knobs.size());
    CHECK(next.at("strips") == fast.at("strips"));
  }
}
