// SPDX-License-Identifier: Apache-2.0
// The search over the driver double: wrong candidates, limits, searches where all fail or that are cancelled, spills,
// noise, history. Kernels are compiled for real and run on the host.
#include <atomic>
#include <chrono>
#include <set>

#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

const Outcome& outcome(const TuneReport& report, int variant) {
  for (const Outcome& o : report.outcomes)
    if (o.candidate == toy(variant)) return o;
  FAIL("no outcome for variant " << variant);
  std::abort();
}

}  // namespace

TEST_CASE("the fastest right candidate wins and is remembered", "[search]") {
  TempDir dir;
  FakeGpu gpu;
  gpu.durations = {{0, 12}, {1, 8}, {2, 10}};
  {
    Engine engine(options(dir / "cache.db"));
    TuneReport r = engine.tune(toy_task(3), gpu.device(), quick_policy());
    CHECK(r.choice.candidate == toy(1));
    CHECK(r.choice.grade == Grade::exact);
    CHECK(r.choice.microseconds == Approx(8));
    CHECK(r.first == toy(0));
    CHECK(r.measured == 3);
    CHECK(r.stopped == "all");
    CHECK_FALSE(r.noisy);
    REQUIRE(r.outcomes.size() == 3);
    CHECK(r.outcomes[2].microseconds == Approx(10));
    CHECK(r.outcomes[1].rounds >= 5);
  }
  Engine second(options(dir / "cache.db"));
  TuneReport again = second.tune(toy_task(3), gpu.device(), quick_policy());
  CHECK(again.choice.candidate == toy(1));
  CHECK(again.compiled == 0);
  CHECK(again.measured == 0);
  CHECK(again.outcomes.size() == 3);
  CHECK(again.outcomes[0].stored);
  CHECK(second.stats().compiled == 0);
}

TEST_CASE("scratch is zero at first, one for all timed launches, and the kernels' to write", "[search]") {
  constexpr std::size_t kBytes = 4096;
  for (const bool beyond : {false, true}) {
    FakeGpu gpu;
    Engine engine(options(""));
    Task task = toy_task(2);
    task.buffers.push_back({.name = "scratch", .bytes = kBytes, .fill = {}, .scratch = true});
    std::set<void*> inputs, scratch;
    bool zero = true;
    task.arguments = [&, plain = task.arguments](std::span<void* const> p, std::int64_t rows) {
      auto* bytes = static_cast<unsigned char*>(p[2]);  // the double's device memory is the host's
      if (scratch.insert(p[2]).second)
        for (std::size_t i = 0; i < kBytes; ++i) zero &= bytes[i] == 0;
      inputs.insert(p[0]);
      bytes[0] = bytes[kBytes - 1] = 7;
      if (beyond) bytes[kBytes] = 7;
      return plain(p.first(2), rows);
    };
    if (beyond) {
      const Error wrong = error_of(ErrorCode::unsupported, [&] { engine.tune(task, gpu.device(), quick_policy()); });
      CHECK(mentions(wrong.what(), "input scratch or bytes beside it"));
      CHECK(zero);
    } else {
      const TuneReport r = engine.tune(task, gpu.device(), quick_policy());
      CHECK(zero);
      CHECK(r.measured == 2);
      CHECK(scratch.size() == 3);  // of either verified run, and of all timed ones
      CHECK(inputs.size() > 3);
    }
  }
}

TEST_CASE("a tie keeps the default, and two tunes agree", "[search]") {
  FakeGpu gpu;
  gpu.durations = {{0, 10.05}, {1, 10.0}, {2, 9.98}};
  Engine engine(options(""));
  TunePolicy policy = quick_policy();
  CHECK(engine.tune(toy_task(3), gpu.device(), policy).choice.candidate == toy(0));
  policy.retune = true;
  TuneReport again = engine.tune(toy_task(3), gpu.device(), policy);
  CHECK(again.choice.candidate == toy(0));
  CHECK(again.compiled == 0);
  CHECK(again.measured == 3);
}

TEST_CASE("a wrong candidate never wins", "[search]") {
  auto [deed, reason] = GENERATE(table<Deed, std::string>({
      {Deed::one_wrong, "expected"},
      {Deed::nan, "nan"},
      {Deed::last_tile, "expected"},
      {Deed::writes_behind, "wrote behind y"},
      {Deed::writes_before, "wrote before y"},
      {Deed::differs_each_run, "second run"},
      {Deed::changes_input, "changed its input x"},
  }));
  FakeGpu gpu;
  gpu.deeds[1] = deed;
  gpu.durations = {{0, 10}, {1, 1}, {2, 9}};
  Engine engine(options(""));
  TuneReport r = engine.tune(toy_task(3), gpu.device(), quick_policy());
  CHECK(outcome(r, 1).kind == OutcomeKind::wrong);
  INFO(outcome(r, 1).detail);
  CHECK(mentions(outcome(r, 1).detail, reason));
  CHECK(r.choice.candidate == toy(2));
  CHECK(outcome(r, 0).kind == OutcomeKind::measured);  // not blamed for what another wrote
}

TEST_CASE("if all that was tried fails, the fallback is verified, used and not stored", "[search]") {
  FakeGpu gpu;
  for (int v = 0; v < 2; ++v) gpu.deeds[v] = Deed::nan;
  Engine engine(options(""));
  TunePolicy policy = quick_policy();
  policy.max_candidates = 2;
  TuneReport r = engine.tune(toy_task(3), gpu.device(), policy);
  CHECK(r.choice.candidate == toy(2));  // a task's last one is its fallback
  CHECK(r.choice.grade == Grade::ranked);
  CHECK(r.choice.microseconds > 0);
  CHECK(r.measured == 1);
  CHECK(outcome(r, 2).kind == OutcomeKind::measured);
  bool stored = false;
  for (const StoreEntry& e : engine.store().list()) stored |= e.kind == "choice" && mentions(e.summary, "toy rows");
  CHECK_FALSE(stored);
  CHECK(engine.prepare(toy_task(3), gpu.device()).candidate(1) == toy(2));
}

TEST_CASE("if every candidate is wrong, tune() and prepare() say so and return none", "[search]") {
  FakeGpu gpu;
  for (int v = 0; v < 3; ++v) gpu.deeds[v] = Deed::nan;
  Engine engine(options(""));
  const auto named = [](const Error& e) {
    CHECK(e.value() == "toy rows=8");
    for (const char* part : {"toy v=0: wrong: ", "toy v=2: wrong: ", "y[1] = nan"}) CHECK(mentions(e.what(), part));
  };
  named(error_of(ErrorCode::unsupported, [&] { engine.tune(toy_task(3), gpu.device(), quick_policy()); }));
  named(error_of(ErrorCode::unsupported, [&] { engine.prepare(toy_task(3), gpu.device()); }));
  // Asked again, the answer comes from what is stored; retune looks again.
  const long launches = gpu.launches;
  named(error_of(ErrorCode::unsupported, [&] { engine.tune(toy_task(3), gpu.device(), quick_policy()); }));
  const long again = gpu.launches - launches;
  CHECK(again < launches);
  gpu.deeds.clear();
  TunePolicy policy = quick_policy();
  policy.retune = true;
  CHECK(engine.tune(toy_task(3), gpu.device(), policy).choice.grade == Grade::exact);
  CHECK_NOTHROW(engine.prepare(toy_task(3), gpu.device()));
}

TEST_CASE("a launch plan beyond the device is skipped", "[search]") {
  FakeGpu gpu;
  Task task = toy_task(3);
  auto source = task.source;
  task.source = [source](const Candidate& c) {
    Source s = source(c);
    if (c.at("v") == 0) s.plan.shared_bytes = 10 << 20;
    if (c.at("v") == 1) s.plan.threads = 4096;
    return s;
  };
  Engine engine(options(""));
  TuneReport r = engine.tune(task, gpu.device(), quick_policy());
  CHECK(outcome(r, 0).kind == OutcomeKind::pruned);
  CHECK(outcome(r, 1).kind == OutcomeKind::pruned);
  CHECK(r.choice.candidate == toy(2));
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("a driver that refuses one module or launch costs that candidate only", "[search]") {
  FakeGpu gpu;
  Engine engine(options(""));
  Task task = toy_task(2);
  engine.tune(task, gpu.device(), quick_policy());  // everything is compiled now
  TunePolicy policy = quick_policy();
  policy.retune = true;
  auto [call, code] = GENERATE(table<const char*, int>({{"cuModuleLoadData", 209}, {"cuLaunchKernelEx", 701}}));
  fake_cuda_fail(call, 2, code);  // the first module is the clock's, the first launch variant 0's
  TuneReport r = engine.tune(task, gpu.device(), policy);
  int failed = 0;
  for (const Outcome& o : r.outcomes) failed += o.kind == OutcomeKind::failed;
  CHECK(failed == 1);
  CHECK(r.choice.grade == Grade::exact);
}

TEST_CASE("a candidate that spills is rejected, one that does not compile is recorded", "[search]") {
  FakeGpu gpu;
  gpu.durations = {{0, 1}, {1, 1}, {2, 9}};
  Task task = toy_task(3);
  auto source = task.source;
  task.source = [source](const Candidate& c) {
    Source s = source(c);
    if (c.at("v") == 1) s.text += "\n#error no such thing\n";
    if (c.at("v") == 0) {
      s.options.push_back("--maxrregcount=24");
      s.text =
          "struct A { const float* x; float* y; long long n; };\n"
          "extern \"C\" __global__ void toy_0(const A a) {\n"
          "  float v[64];\n"
          "#pragma unroll\n"
          "  for (int i = 0; i < 64; ++i) v[i] = a.x[(i * 37 + threadIdx.x) % a.n];\n"
          "  __syncthreads();\n"
          "  for (int r = 0; r < a.n; ++r) {\n"
          "#pragma unroll\n"
          "    for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i + 13) % 64] + v[(i + 7) % 64];\n"
          "  }\n"
          "#pragma unroll\n"
          "  for (int i = 0; i < 64; ++i) a.y[i + threadIdx.x] = v[i];\n}\n";
    }
    return s;
  };
  Engine engine(options(""));
  TuneReport r = engine.tune(task, gpu.device(), quick_policy());
  CHECK(outcome(r, 0).kind == OutcomeKind::rejected);
  CHECK(mentions(outcome(r, 0).detail, "spills"));
  CHECK(outcome(r, 0).resources.spill_bytes > 0);
  CHECK(outcome(r, 1).kind == OutcomeKind::not_compiled);
  CHECK(mentions(outcome(r, 1).detail, "no such thing"));
  CHECK(r.choice.candidate == toy(2));
}

TEST_CASE("cancelling stops within a second and keeps what was found", "[search]") {
  TempDir dir;
  FakeGpu gpu;
  std::atomic<bool> stop{false};
  std::chrono::steady_clock::time_point asked;
  TunePolicy policy = quick_policy();
  policy.cancelled = [&] { return stop.load(); };
  policy.progress = [&](std::string_view stage, int done, int) {
    if (stage == "measure" && done == 2 && !stop) {
      asked = std::chrono::steady_clock::now();
      stop = true;
    }
  };
  Engine engine(options(dir / "cache.db"));
  TuneReport r = engine.tune(toy_task(12), gpu.device(), policy);
  double late = std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
  CHECK(late < 1);
  CHECK(r.stopped == "cancelled");
  CHECK(r.measured == 2);
  stop = false;
  policy.progress = {};
  TuneReport rest = engine.tune(toy_task(12), gpu.device(), policy);
  CHECK(rest.stopped == "all");
  CHECK(rest.outcomes.size() == 12);
}

TEST_CASE("patience and budget end a search early, the default is always measured", "[search]") {
  FakeGpu gpu;
  Engine engine(options(""));
  TunePolicy policy = quick_policy();
  SECTION("patience") {
    policy.patience = 2;
    TuneReport r = engine.tune(toy_task(8), gpu.device(), policy);
    CHECK(r.stopped == "patience");
    CHECK(r.measured == 3);
  }
  SECTION("budget") {
    policy.budget_seconds = 0;
    TuneReport r = engine.tune(toy_task(8), gpu.device(), policy);
    CHECK(r.stopped == "budget");
    CHECK(r.measured == 1);
    CHECK(r.choice.candidate == toy(0));
  }
  SECTION("exhaustive knows neither") {
    policy.budget_seconds = 0;
    policy.patience = 1;
    policy.max_candidates = 2;
    policy.exhaustive = true;
    CHECK(engine.tune(toy_task(5), gpu.device(), policy).measured == 5);
  }
}

TEST_CASE("noise is reported and its choice is not stored", "[search]") {
  FakeGpu gpu;
  int n = 0;
  gpu.duration_of = [&](int, int) { return ++n % 200 < 100 ? 10.0 : 30.0; };
  auto messages = std::make_shared<Messages>();
  Engine engine(options("", messages));
  TuneReport r = engine.tune(toy_task(2), gpu.device(), quick_policy());
  CHECK(r.noisy);
  CHECK(messages->any("not stored"));
  gpu.duration_of = {};
  TuneReport calm = engine.tune(toy_task(2), gpu.device(), quick_policy());
  CHECK(calm.measured > 0);
}

TEST_CASE("a lost device ends the search with the driver's error", "[search]") {
  FakeGpu gpu;
  gpu.deeds[1] = Deed::faults;
  Engine engine(options(""));
  Error e = error_of(ErrorCode::driver_failed, [&] { engine.tune(toy_task(3), gpu.device(), quick_policy()); });
  CHECK(mentions(e.what(), "700"));
}

TEST_CASE("policies out of range are refused by name", "[search]") {
  FakeGpu gpu;
  Engine engine(options(""));
  TunePolicy p = quick_policy();
  p.max_candidates = 0;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { engine.tune(toy_task(1), gpu.device(), p); }).field() ==
        "max_candidates");
  p = quick_policy();
  p.budget_seconds = -1;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { engine.tune(toy_task(1), gpu.device(), p); }).field() ==
        "budget_seconds");
  Task t = toy_task(1);
  t.candidates.clear();
  CHECK(error_of(ErrorCode::invalid_argument, [&] { engine.tune(t, gpu.device()); }).field() == "task.candidates");
}

// As a chip at its power limit: rounds at different clocks do not count, and here no two are alike.
TEST_CASE("finals at a clock that never settles leave the best screened candidate", "[search]") {
  FakeGpu gpu;
  gpu.durations = {{0, 12}, {1, 8}, {2, 10}};
  unsigned long long launches = 0;
  bool final_rounds = false;
  gpu.on_launch = [&](const FakeLaunch& launch) {
    if (std::string_view(launch.entry) != "tilewright_clock") return;
    auto* out = *static_cast<unsigned long long**>(launch.params[0]);  // cycles, nanoseconds
    out[1] = 20000;
    out[0] = 20 * (final_rounds ? 100 + 170 * (launches++ * 13 % 53) : 1500);
  };
  TunePolicy policy = quick_policy();
  policy.progress = [&](std::string_view stage, int done, int total) {
    final_rounds |= stage == "measure" && done == total;
  };
  Engine engine(options(""));
  const TuneReport r = engine.tune(toy_task(3), gpu.device(), policy);
  CHECK(launches > 0);
  CHECK(r.choice.candidate == toy(1));
  CHECK(r.choice.grade == Grade::ranked);
  CHECK(r.noisy);
}

// As a chip at its power limit: one candidate is the fastest for the first graph in a row, not for the next.
TEST_CASE("finals are timed under load", "[search]") {
  FakeGpu gpu;
  bool final_rounds = false;
  int last = -1, in_a_row = 0, graph = 0;  // launches; `graph`: of the last one screened
  gpu.duration_of = [&](int variant, int) {
    in_a_row = variant == last ? in_a_row + 1 : 1;
    last = variant;
    if (variant != 1) return variant == 0 ? 12.0 : 10.0;
    return final_rounds && in_a_row > 1.5 * graph ? 15.0 : 9.9;
  };
  gpu.on_launch = [&](const FakeLaunch& launch) {
    if (std::string_view(launch.entry) != "tilewright_clock") return;  // after each graph that counts
    if (!final_rounds) graph = in_a_row;
    last = -1;
  };
  TunePolicy policy = quick_policy();
  policy.progress = [&](std::string_view stage, int done, int total) {
    final_rounds |= stage == "measure" && done == total;
  };
  Engine engine(options(""));
  const TuneReport r = engine.tune(toy_task(3), gpu.device(), policy);
  CHECK(graph > 10);
  CHECK(r.choice.candidate == toy(2));
}
