// SPDX-License-Identifier: Apache-2.0
// tune() of all rows over the driver double: what is measured, stored and served. Kernels are compiled for real.
#include <optional>
#include <vector>

#include "tuner/keys.h"
#include "tuner/rows/rows.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

TunePolicy all_rows() {
  TunePolicy policy = quick_policy();
  policy.all_rows = true;
  policy.max_binaries = 4;
  policy.budget_seconds = 300;
  return policy;
}

// Kernels take 20 ns a row and not a microsecond: after each sample the tuner rests, in real time, by what it took.
void time_by_rows(FakeGpu& gpu) {
  gpu.gemm_duration = [](const FakeLaunch&, std::int64_t rows) { return 1.0 + 0.02 * static_cast<double>(rows); };
}

std::vector<std::byte> image_of(const Engine& engine, const Candidate& c) {
  const Source source = family("gemm", c.family).source(small(), target(), c);
  return compile(source, target(), CompileOptions::of(engine.options())).image;
}

}  // namespace

TEST_CASE("tune() of all rows is remembered, and prepare() serves what it found", "[search_rows]") {
  TempDir dir;
  FakeGpu gpu;
  gpu.serve(small(), target());
  time_by_rows(gpu);
  std::vector<RowRange> ranges;
  {
    Engine engine(options(dir / "c.db"));
    const TuneReport r = engine.tune(small(), gpu.device(), all_rows());
    CHECK(r.stopped == "all");
    CHECK(r.compiled > 0);
    CHECK(r.measured > 4);
    REQUIRE_FALSE(r.ranges.empty());
    CHECK(r.ranges.front().first == 1);
    CHECK(r.ranges.back().last == 0);
    for (std::size_t i = 0; i < r.ranges.size(); ++i) {
      CHECK(r.ranges[i].measured);
      if (i > 0) CHECK(r.ranges[i].first == r.ranges[i - 1].last + 1);
    }
    CHECK(r.choice.grade == Grade::exact);
    for (const Outcome& o : r.outcomes) {
      INFO(o.candidate.text() << " at " << o.rows << ": " << o.detail);
      CHECK((o.kind == OutcomeKind::measured || o.kind == OutcomeKind::rejected));
      CHECK(o.rows > 0);
    }
    ranges = r.ranges;
    const Kernel kernel = engine.prepare(small(), gpu.device());
    for (const RowRange& range : ranges)
      if (range.first <= kMostStepRows) CHECK(kernel.candidate(range.first) == range.candidate);
  }
  Engine second(options(dir / "c.db"));
  const Kernel kernel = second.prepare(small().with_rows(500), gpu.device());
  CHECK(second.stats().compiled == 0);
  CHECK(second.stats().measured == 0);
  for (const RowRange& range : ranges) {
    if (range.first <= kMostStepRows) CHECK(kernel.candidate(range.first) == range.candidate);
    if (range.last) CHECK(kernel.candidate(range.last) == range.candidate);
  }
  const TuneReport again = second.tune(small(), gpu.device(), all_rows());
  CHECK(again.measured == 0);
  CHECK(again.ranges.size() == ranges.size());
  CHECK(mentions(second.explain(small(), target(), nullptr), "problem: "));
  const Device device = gpu.device();
  CHECK(mentions(second.explain(small(), target(), &device), "by number of rows"));
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("a binary found wrong serves no number of rows", "[search_rows]") {
  FakeGpu gpu;
  gpu.serve(small(), target());
  time_by_rows(gpu);
  Engine engine(options(""));
  const TuneReport before = engine.tune(small(), gpu.device(), all_rows());
  const Kernel kernel = engine.prepare(small(), gpu.device());
  // The candidate that serves two rows turns out wrong.
  const Candidate bad = kernel.candidate(2);
  gpu.bad_images.insert(image_of(engine, bad));
  TunePolicy retune = all_rows();
  retune.retune = true;
  const TuneReport after = engine.tune(small(), gpu.device(), retune);
  bool told = false;
  for (const Outcome& o : after.outcomes) told = told || (o.candidate == bad && o.kind == OutcomeKind::wrong);
  CHECK(told);
  for (const RowRange& r : after.ranges) CHECK(r.candidate != bad);
  CHECK(engine.prepare(small(), gpu.device()).candidate(2) != bad);
}

TEST_CASE("a search of one number of rows teaches the table of all", "[search_rows]") {
  FakeGpu gpu;
  gpu.serve(small(), target());
  time_by_rows(gpu);
  Engine engine(options(""));
  engine.tune(small(), gpu.device(), all_rows());
  // What serves these rows has become slow, which only a search of that number of rows notices.
  const Candidate before = engine.prepare(small(), gpu.device()).candidate(2);
  TunePolicy one = quick_policy();
  one.retune = true;
  one.max_candidates = 3;
  gpu.gemm_duration = [slow = image_of(engine, before)](const FakeLaunch& launch, std::int64_t) {
    const auto* image = static_cast<const std::byte*>(launch.image);
    return std::vector<std::byte>(image, image + launch.image_bytes) == slow ? 100.0 : 1.0;
  };
  const TuneReport found = engine.tune(small(), gpu.device(), one);
  REQUIRE(found.choice.grade == Grade::exact);
  REQUIRE(found.choice.candidate != before);
  CHECK(engine.prepare(small(), gpu.device()).candidate(2) == found.choice.candidate);
}

TEST_CASE("a cancelled search of all rows stores no table", "[search_rows]") {
  TempDir dir;
  FakeGpu gpu;
  gpu.serve(small(), target());
  time_by_rows(gpu);
  Engine engine(options(dir / "c.db"));
  TunePolicy policy = all_rows();
  int polls = 0;
  policy.cancelled = [&] { return ++polls > 20; };
  const TuneReport r = engine.tune(small(), gpu.device(), policy);
  CHECK(r.stopped == "cancelled");
  CHECK(r.ranges.empty());
  CHECK(r.choice.grade == Grade::ranked);
  CHECK(engine.store().all_lists().empty());
}

TEST_CASE("a search of all rows that its budget ends says what it only estimates", "[search_rows]") {
  FakeGpu gpu;
  gpu.serve(small(), target());
  time_by_rows(gpu);
  Engine engine(options(""));
  TunePolicy policy = all_rows();
  policy.budget_seconds = 0;
  const TuneReport r = engine.tune(small(), gpu.device(), policy);
  CHECK(r.stopped == "budget");
  CHECK(r.measured == 1);
  REQUIRE_FALSE(r.ranges.empty());
  for (const RowRange& range : r.ranges) {
    bool inside = false;
    for (const Outcome& o : r.outcomes)
      inside = inside || (o.candidate == range.candidate && o.kind == OutcomeKind::measured && o.rows >= range.first &&
                          (range.last == 0 || o.rows <= range.last));
    INFO(range.candidate.text() << " from " << range.first << " to " << range.last);
    CHECK(inside == range.measured);
  }
  // The table that was stored says the same.
  const TuneReport again = engine.tune(small(), gpu.device(), policy);
  REQUIRE(again.ranges.size() == r.ranges.size());
  for (std::size_t i = 0; i < r.ranges.size(); ++i) CHECK(again.ranges[i].measured == r.ranges[i].measured);
}

TEST_CASE("confirming and comparing stay within the budget of a search of all rows", "[search_rows]") {
  FakeGpu gpu;
  gpu.serve(small(), target());
  // Launches that take long: to confirm each number of rows would take minutes.
  gpu.gemm_duration = [](const FakeLaunch&, std::int64_t rows) { return 3e4 + 20 * static_cast<double>(rows); };
  Engine engine(options(""));
  TunePolicy policy = all_rows();
  policy.budget_seconds = 4;
  const TuneReport r = engine.tune(small(), gpu.device(), policy);
  CHECK(r.stopped == "budget");
  CHECK(r.measured > 0);
  CHECK(r.seconds <= 1.1 * policy.budget_seconds + 2);
}

TEST_CASE("a full table of all rows makes room for what a search of one number finds", "[search_rows]") {
  FakeGpu gpu;
  gpu.serve(small(), target());
  time_by_rows(gpu);
  Engine engine(options(""));
  engine.tune(small(), gpu.device(), all_rows());
  const Device device = gpu.device();
  const Key key = tuner::rows_key(device);
  std::optional<CandidateList> table = engine.store().find_list(key, small().with_rows(1).text());
  REQUIRE(table);
  const Candidate any = table->candidates[0].candidate;
  while (table->candidates.size() < tuner::RowTable::kMostCandidates) table->candidates.push_back({any, 1, {{1, 1e6}}});
  REQUIRE(engine.store().put_list(key, *table));
  TunePolicy one = quick_policy();
  one.retune = true;
  gpu.gemm_duration = [](const FakeLaunch&, std::int64_t) { return 0.5; };
  const TuneReport found = engine.tune(small(), device, one);
  REQUIRE(found.choice.grade == Grade::exact);
  CHECK(engine.prepare(small(), device).candidate(small().rows()) == found.choice.candidate);
}

TEST_CASE("policies of all rows are checked", "[search_rows]") {
  FakeGpu gpu;
  Engine engine(options(""));
  TunePolicy policy = all_rows();
  for (const int wrong : {0, 257}) {
    policy.max_binaries = wrong;
    const Error e = error_of(ErrorCode::invalid_argument, [&] { engine.tune(small(), gpu.device(), policy); });
    CHECK(e.field() == "max_binaries");
  }
}
