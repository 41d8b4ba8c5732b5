// SPDX-License-Identifier: Apache-2.0
// Engine::prewarm(): what it compiles, keeps, counts and refuses.
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <string>

#include "support/paths.h"
#include "tuner/keys.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("prewarm without libnvrtc is one error, unless everything is stored", "[engine]") {
  const TempDir dir;
  const std::string cache = dir / "cache.db";
  const Arch* targets[] = {&target()};
  PrewarmPolicy policy;
  policy.top = 1;
  policy.every_bucket = false;
  Options missing = options(cache);
  missing.nvrtc = "/nonexistent/libnvrtc.so.13";
  {
    Engine engine(missing);
    const Error error =
        error_of(ErrorCode::library_missing, [&] { engine.prewarm(std::span(&small(), 1), targets, policy); });
    CHECK(mentions(error.what(), "TILEWRIGHT_NVRTC"));
    CHECK(mentions(error.what(), missing.nvrtc));
  }
  CHECK(Engine(options(cache)).prewarm(std::span(&small(), 1), targets, policy).compiled > 0);
  const PrewarmReport report = Engine(missing).prewarm(std::span(&small(), 1), targets, policy);
  CHECK(report.compiled == 0);
  CHECK(report.failed == 0);
  CHECK(report.skipped > 0);
}

TEST_CASE("prewarm, then prepare and tune compile nothing, and tuning verifies real kernels", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  gpu.serve(small(), target());
  Engine engine(warmed(dir));
  Device device = gpu.device();
  engine.prepare(small(), device);
  CHECK(engine.stats().compiled == 0);
  TuneReport r = engine.tune(small(), device, quick_policy());
  CHECK(r.compiled == 0);
  CHECK(engine.stats().compiled == 0);
  CHECK(r.measured >= 1);
  CHECK(r.choice.grade == Grade::exact);
  for (const Outcome& o : r.outcomes) {
    INFO(o.candidate.text() << ": " << o.detail);
    CHECK(o.kind == OutcomeKind::measured);
    CHECK(o.error <= 1);
  }
  CHECK(engine.choose(small(), device).grade == Grade::exact);
  CHECK(engine.choose(Problem::parse("gemm x=f16 w=q4_0 y=f32 m=3 n=64 k=256"), device).grade != Grade::exact);

  TunePolicy retune = quick_policy();
  retune.retune = true;
  CHECK(engine.tune(small(), device, retune).choice.candidate == r.choice.candidate);
  engine.prepare(small(), device);  // with the new choice
  CHECK(engine.stats().compiled == 0);
}

TEST_CASE("prewarm() refuses a cache that keeps nothing, before it compiles", "[engine]") {
  TempDir dir;
  const Arch* targets[] = {&target()};
  const auto refused = [&](const std::string& path, bool read_only = false) {
    Options o = options(path);
    o.cache_read_only = read_only;
    Engine engine(o);
    const Error e = error_of(ErrorCode::io, [&] { engine.prewarm(std::span(&small(), 1), targets); });
    CHECK(e.field() == "cache");
    CHECK(engine.stats().compiled == 0);
    return std::string(e.what());
  };
  const std::string open_to_all = dir / "open";
  REQUIRE(::mkdir(open_to_all.c_str(), 0777) == 0);
  REQUIRE(::chmod(open_to_all.c_str(), 0777) == 0);
  CHECK(mentions(refused(open_to_all + "/c.db"), "chmod"));
  CHECK(mentions(refused("/proc/c.db"), "/proc"));
  refused(dir / "absent.db", true);
}

TEST_CASE("prewarm() stops when the cache becomes unwritable, and says so", "[engine]") {
  TempDir dir;
  Engine engine(options(dir / "c.db"));
  PrewarmPolicy policy;
  policy.top = 4;
  policy.jobs = 1;
  // A file-system limit for what this process writes stands for a full disk.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  int compiled = 0;
  policy.progress = [&](std::string_view stage, int done, int total) {
    if (stage != "compile") return;
    compiled = done;
    CHECK(total > 2);
    const rlimit full{64 << 10, before.rlim_max};
    if (done == 1) ::setrlimit(RLIMIT_FSIZE, &full);
  };
  const Arch* targets[] = {&target()};
  const Error e = error_of(ErrorCode::io, [&] { engine.prewarm(std::span(&small(), 1), targets, policy); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(e.field() == "cache");
  INFO(e.what());
  CHECK(mentions(e.what(), "keeps what is compiled"));
  CHECK(compiled <= 3);
}

TEST_CASE("a caller's own task is prewarmed", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Task task = toy_task(4);
  const Arch* targets[] = {&target()};
  PrewarmPolicy policy;
  policy.top = 2;
  Options o = options(dir / "c.db");
  {
    Engine engine(o);
    const PrewarmReport r = engine.prewarm(task, targets, policy);
    CHECK(r.compiled == 3);  // two candidates and the clock
    CHECK(r.failed == 0);
    CHECK(engine.prewarm(task, targets, policy).skipped == 3);
    Task broken = task;
    broken.candidates.clear();
    CHECK(error_of(ErrorCode::invalid_argument, [&] { engine.prewarm(broken, targets, policy); }).field() ==
          "task.candidates");
  }
  o.compile = false;
  Engine engine(o);
  CHECK(engine.prepare(task, gpu.device()).candidate(1) == toy(0));
  CHECK(engine.stats().compiled == 0);
  Task third = toy_task(4, 16);
  third.candidates = {toy(2)};
  const std::string other = error_of(ErrorCode::would_tune, [&] { engine.prepare(third, gpu.device()); }).what();
  CHECK(mentions(other, "toy rows=16 on sm_90a"));
}

TEST_CASE("what repeats a candidate that failed is not counted as stored", "[engine]") {
  Engine engine(options(""));
  Task task = toy_task(3);
  task.source = [source = task.source](const Candidate&) {
    Source s = source(toy(0));
    s.text += "#error never\n";
    return s;
  };
  const Arch* targets[] = {&target()};
  PrewarmPolicy policy;
  policy.top = 3;
  const PrewarmReport r = engine.prewarm(task, targets, policy);
  CHECK(r.failed == 1);
  CHECK(r.failures.size() == 1);
  CHECK(r.compiled == 1);  // the clock
  CHECK(r.skipped == 0);
}

TEST_CASE("a packed problem of a workload is packed in each target's own order", "[engine]") {
  Engine engine(options(""));
  const Problem tiles = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256 pack=tiles");
  const Problem panels = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256 pack=panels");
  const Problem stored = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256");
  const Arch& cpu = arch("x86-64-v3");
  REQUIRE(engine.packed(stored, arch("sm_90a")) == tiles);
  for (const Problem& packed : {tiles, panels}) {
    INFO(packed.text());
    CHECK(engine.packed_for(packed, arch("sm_90a")) == tiles);
    for (const char* other : {"sm_80", "sm_100a", "sm_120a"}) CHECK(engine.packed_for(packed, arch(other)) == stored);
    CHECK(engine.packed_for(packed, cpu) == engine.packed(stored, cpu));
  }
  CHECK(engine.packed_for(stored, arch("sm_90a")) == stored);
  // Only pack=panels allows both fields, so there is no such problem for a GPU.
  const Problem groups = Problem::parse("gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=2 n=64 k=256 groups=2 pack=panels");
  CHECK(engine.packed_for(groups, arch("sm_90a")) == groups);

  PrewarmPolicy policy;
  policy.top = 1;
  policy.every_bucket = false;
  const Arch* targets[] = {&arch("sm_80"), &arch("sm_90a")};
  const PrewarmReport r = engine.prewarm(std::span(&panels, 1), targets, policy);
  CHECK(r.failures == std::vector<std::string>());
  CHECK(engine.store().find_list(tuner::prewarm_key(arch("sm_80")), stored.text()));
  CHECK(engine.store().find_list(tuner::prewarm_key(arch("sm_90a")), tiles.text()));
}

TEST_CASE("prewarm compiles the reference where it is alone only when told to", "[engine]") {
  Engine engine(options(""));
  const Problem problem = Problem::parse("gemm x=q8_1 w=nf4 y=f32 m=2 n=64 k=256");
  REQUIRE(mentions(only_reference(problem, arch("sm_80")), "sm_80"));
  PrewarmPolicy policy;
  policy.top = 1;
  policy.every_bucket = false;
  const Arch* targets[] = {&arch("sm_80")};
  PrewarmReport r = engine.prewarm(std::span(&problem, 1), targets, policy);
  CHECK(r.compiled == 0);
  REQUIRE(r.failed == 1);
  CHECK(mentions(r.failures[0], "sm_80 " + problem.text() + ": only the reference kernel, which is slow"));
  CHECK(mentions(r.failures[0], "gemv: "));
  policy.reference = true;
  r = engine.prewarm(std::span(&problem, 1), targets, policy);
  CHECK(r.failed == 0);
  CHECK(r.compiled > 0);
}

TEST_CASE("prewarm stops when it is cancelled, keeps what was compiled and fails nothing", "[engine]") {
  TempDir dir;
  Engine engine(options(dir / "c.db"));
  const Arch* targets[] = {&target()};
  PrewarmPolicy policy;
  policy.top = 3;
  policy.jobs = 1;
  policy.every_bucket = false;
  int compiled = 0, all = 0;
  policy.progress = [&](std::string_view stage, int done, int total) {
    if (stage == "compile") compiled = done, all = total;
  };
  policy.cancelled = [&] { return compiled >= 1; };
  PrewarmReport r = engine.prewarm(std::span(&small(), 1), targets, policy);
  CHECK(r.cancelled);
  CHECK(r.failed == 0);
  CHECK(r.compiled >= 1);
  CHECK(r.compiled < all);
  policy.cancelled = [] { return true; };
  CHECK(engine.prewarm(std::span(&small(), 1), targets, policy).compiled == 0);
  policy.cancelled = nullptr;
  const PrewarmReport rest = engine.prewarm(std::span(&small(), 1), targets, policy);
  CHECK_FALSE(rest.cancelled);
  CHECK(rest.compiled > 0);
  CHECK(rest.skipped >= r.compiled);
}
