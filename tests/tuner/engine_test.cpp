// SPDX-License-Identifier: Apache-2.0
// Engine, whole: real templates, the real compiler, the driver double, kernels computed on the host. Small problems.
#include <sys/stat.h>

#include <tilewright/store.h>

#include "jit/device.h"
#include "support/paths.h"
#include "tuner/choose/rank.h"
#include "tuner/keys.h"
#include "tuner/task.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

std::string engine_compiler(const Engine& engine) { return compiler_version(CompileOptions::of(engine.options())); }

}  // namespace

TEST_CASE("prepare() compiles what it needs, and a second process nothing", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  {
    Engine engine(options(dir / "c.db"));
    engine.prepare(small(), gpu.device());
    CHECK(engine.stats().compiled > 0);
    CHECK(engine.stats().compiled <= kBucketCount);
    std::int64_t once = engine.stats().compiled;
    engine.prepare(small().with_rows(4096), gpu.device());  // rows do not matter
    CHECK(engine.stats().compiled == once);
    CHECK(engine.stats().memory_hits == 1);
    CHECK(engine.stats().prepared == 2);
  }
  Engine second(options(dir / "c.db"));
  second.prepare(small(), gpu.device());
  CHECK(second.stats().compiled == 0);
  CHECK(second.stats().cache_hits > 0);
  CHECK(second.stats().cache_hits <= kBucketCount);  // what was passed over is not even looked at again
  CHECK(second.stats().warnings == 0);
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("every real candidate wrong leaves the reference, if that is right, for prepare() too", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Device device = gpu.device();
  gpu.serve(small(), target());
  gpu.all_bad = true;
  Engine engine(warmed(dir));
  const Task task = engine.task(small(), target());
  const Source reference = task.source(task.candidates.back());
  {
    TempDir elsewhere;
    Engine other(warmed(elsewhere));
    const Error e = error_of(ErrorCode::unsupported, [&] { other.tune(small(), device, quick_policy()); });
    CHECK(e.value() == tuner::bucketed(small()).text());
    CHECK(mentions(e.what(), "reference oracle=0: wrong: "));
  }
  gpu.good_images.insert(compile(reference, target(), CompileOptions::of(engine.options())).image);
  TunePolicy again = quick_policy();
  again.retune = true;
  TuneReport r = engine.tune(small(), device, again);
  CHECK(r.choice.candidate == task.candidates.back());
  CHECK(r.choice.grade == Grade::ranked);
  for (const Outcome& o : r.outcomes) CHECK((o.kind == OutcomeKind::wrong) == (o.candidate.family != "reference"));
  // Nothing that was found wrong is used without another look.
  Choice choice = engine.choose(small(), device);
  for (const Outcome& o : r.outcomes) CHECK((o.kind == OutcomeKind::measured || choice.candidate != o.candidate));
}

TEST_CASE("a stored choice that was found wrong since is not used", "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine engine(options(""));
  const Problem problem = tuner::bucketed(small());
  const auto ranked = tuner::rank(problem, target(), tuner::model_of(device));
  StoredChoice stored;
  stored.problem = problem.text(), stored.candidate = ranked.front().candidate, stored.microseconds = 5;
  REQUIRE(engine.store().put_choice(tuner::choice_key(device), stored));
  CHECK(engine.choose(problem, device).candidate == stored.candidate);
  Outcome wrong;
  wrong.candidate = stored.candidate, wrong.kind = OutcomeKind::wrong, wrong.detail = "y[0,0] = 1, expected 2";
  const Key key = tuner::outcome_key(device, engine_compiler(engine));
  const auto condemn = [&](const Candidate& c) {
    wrong.candidate = c;
    REQUIRE(engine.store().put_outcome(key, problem.text(), wrong, "test"));
  };
  condemn(stored.candidate);
  CHECK(engine.choose(problem, device).candidate != stored.candidate);
  // The reference is the last to be left, and no exception.
  for (const tuner::Ranked& r : ranked) condemn(r.candidate);
  const Error e = error_of(ErrorCode::unsupported, [&] { engine.prepare(problem, device); });
  CHECK(mentions(e.what(), "expected 2"));
}

TEST_CASE("under capture a cold prepare() refuses, a warm one serves, the capture stays valid", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  Engine engine(warmed(dir));
  Device device = gpu.device();
  jit::OwnedStream stream(device);
  bool refused = false;
  {
    jit::Graph graph(device, stream, [&](Stream) {
      try {
        engine.prepare(small(), device, stream.get());
      } catch (const Error& e) {
        refused = e.code() == ErrorCode::would_tune;
      }
    });
    CHECK(refused);
  }
  engine.prepare(small(), device);
  jit::Graph graph(device, stream, [&](Stream) { CHECK_NOTHROW(engine.prepare(small(), device, stream.get())); });
  graph.launch(stream.get());
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("Options::compile = false serves what is stored and names what is not", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  Options o = warmed(dir);
  o.compile = false;
  Engine engine(o);
  CHECK_NOTHROW(engine.prepare(small(), gpu.device()));
  const auto refused = [&](const char* text) {
    const Error e = error_of(ErrorCode::would_tune, [&] { engine.prepare(Problem::parse(text), gpu.device()); });
    CHECK(e.field() == "options.compile");
    return std::string(e.what());
  };
  const std::string nothing = refused("gemm x=f16 w=q8_0 y=f32 m=2 n=64 k=256");
  for (const char* part : {"gemm x=f16 w=q8_0 y=f32 m=", " n=64 k=256 on sm_90a", "stored for it: nothing"}) {
    INFO(part);
    CHECK(mentions(nothing, part));
  }
  const Problem elsewhere = Problem::parse("gemm x=f32 w=f32 y=f32 m=1 n=64 k=64");
  {
    Engine compiling(options(dir / "copy.db"));
    PrewarmPolicy policy;
    policy.top = 1;
    const Arch* targets[] = {&arch("sm_80")};
    REQUIRE(compiling.prewarm(std::span(&elsewhere, 1), targets, policy).failed == 0);
  }
  CHECK(mentions(refused("gemm x=f32 w=f32 y=f32 m=1 n=64 k=64"), "a prewarm's 1 candidates for sm_80"));
}

TEST_CASE("with Options::compile = false an error says which stores are not used, and why", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const std::string open = dir / "open.db", absent = dir / "absent.db", own = dir / "own.db";
  StoreOptions from;
  from.path = warm_cache();
  Store(from).export_to(open);
  REQUIRE(::chmod(open.c_str(), 0666) == 0);
  Options o = options(own);
  o.compile = false;
  o.shipped = {open, absent};
  const auto refused = [&] {
    Engine engine(o);
    return std::string(error_of(ErrorCode::would_tune, [&] { engine.prepare(small(), gpu.device()); }).what());
  };
  std::string text = refused();
  INFO(text);
  CHECK(mentions(text, "stored for it: nothing that could be read; a store is not used: " + open + " is writable by"));
  CHECK(mentions(text, "; a store is not used: " + absent + " does not exist; prewarm it, or allow compiling"));

  o.shipped.clear();
  CHECK(mentions(refused(), "stored for it: nothing; prewarm it"));
  REQUIRE(::chmod(own.c_str(), 0666) == 0);
  text = refused();
  INFO(text);
  CHECK(mentions(text, "stored for it: nothing that could be read; a store is not used: " + own + " is writable by"));

  REQUIRE(::chmod(open.c_str(), 0600) == 0);
  o.shipped = {absent, open};
  Engine(o).prepare(small(), gpu.device());
}

TEST_CASE("a kernel says which candidate serves a number of rows", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  Engine engine(warmed(dir));
  const Kernel kernel = engine.prepare(small(), gpu.device());
  for (const RowRange& range : engine.ranges(small(), gpu.device()))
    if (range.first <= kMostStepRows) CHECK(kernel.candidate(range.first) == range.candidate);
  CHECK_FALSE(kernel.candidate(100000).family.empty());
  CHECK(engine.prepare(toy_task(2), gpu.device()).candidate(1) == toy(0));
  CHECK(Kernel(gpu.device(), compile(toy_task(1).source(toy(0)), target(), CompileOptions::of(engine.options())))
            .candidate(1)
            .family.empty());
}

TEST_CASE("after a device reset the same problem is prepared anew", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  Engine engine(warmed(dir));
  Kernel before = engine.prepare(small(), gpu.device());
  fake_cuda_reset_device(0);
  Kernel after = engine.prepare(small(), gpu.device());
  alignas(16) std::byte somewhere[16];
  GemmArgs args;
  args.x.data = args.w.data = args.y = somewhere;
  args.m = 1;
  CHECK(mentions(error_of(ErrorCode::driver_failed, [&] { before.launch(nullptr, args); }).what(), "reset"));
  CHECK(engine.stats().memory_hits == 0);
  CHECK(engine.stats().compiled == 0);
}

TEST_CASE("a shipped store answers below the user's own", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  Options o = options(dir / "user.db");
  o.shipped = {warm_cache()};
  o.compile = false;
  Engine engine(o);
  engine.prepare(small(), gpu.device());
  CHECK(engine.stats().compiled == 0);
}

TEST_CASE("Options::tune measures before it serves", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  gpu.serve(small(), target());
  Options o = warmed(dir);
  o.tune = true;
  Engine engine(o);
  engine.prepare(small(), gpu.device());
  CHECK(engine.stats().measured > 0);
  CHECK(engine.choose(small(), gpu.device()).grade == Grade::exact);
}

TEST_CASE("problems asked for are recorded once each", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  auto messages = std::make_shared<Messages>();
  Options o = warmed(dir, messages);
  o.record = dir / "work.txt";
  {
    Engine engine(o);
    for (int i = 0; i < 3; ++i) {
      engine.prepare(small(), gpu.device());
      engine.prepare(small().with_rows(7), gpu.device());
    }
  }
  Engine(o).prepare(small(), gpu.device());  // another process
  std::vector<Problem> seen = read_workload(o.record);
  REQUIRE(seen.size() == 2);
  CHECK(seen[0] == small());
  CHECK(seen[1] == small().with_rows(7));
  o.record = dir / "no/such/folder.txt";
  Engine engine(o);
  engine.prepare(small(), gpu.device());
  engine.prepare(small().with_rows(9), gpu.device());
  CHECK(messages->warnings.size() == 1);
  CHECK(messages->any("not recorded"));
}

TEST_CASE("a place that is no regular file records nothing and blocks nobody", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  for (const std::string& place : {dir / "fifo", std::string("/dev/null"), std::string("/dev/zero"), dir.path()}) {
    INFO(place);
    auto messages = std::make_shared<Messages>();
    TempDir cache;
    Options o = warmed(cache, messages);
    o.record = place;
    Engine(o).prepare(small(), gpu.device());
    CHECK(messages->any("not recorded"));
  }
}

TEST_CASE("plan, emit, task and explain need no GPU", "[engine]") {
  fake_cuda_reset();
  fake_cuda_set_device_count(0);
  Engine engine(options(""));
  auto plan = engine.plan(small(), target());
  CHECK(plan.back().candidate.family == "reference");
  Source source = engine.emit(small(), target());
  CHECK_FALSE(source.text.empty());
  CHECK(source.plan == plan[0].plan);
  Task task = engine.task(small(), target());
  CHECK(task.candidates.size() == plan.size());
  CHECK(task.candidates.front() == plan[0].candidate);
  CHECK(task.candidates.back() == plan.back().candidate);
  std::string text = engine.explain(small(), target());
  for (const char* part : {"choice: ", "grade: ranked", "binary key", "families:", "reference"}) {
    INFO(part);
    CHECK(mentions(text, part));
  }
  const Explanation fields = engine.explanation(small(), target());
  CHECK(fields.problem == small().text());
  CHECK(fields.target == target().name);
  CHECK(fields.choice->candidate == plan[0].candidate);
  CHECK(fields.choice->grade == Grade::ranked);
  CHECK(fields.ranking.size() == plan.size());
  CHECK(fields.families.back().family == "reference");
  CHECK(fields.binary == "not compiled yet");
  REQUIRE(fields.binary_key);
  CHECK(mentions(text, fields.binary_key->hash().substr(0, 12)));
  CHECK_FALSE(mentions(fields.text(), "binary key"));
  fake_cuda_reset();
  Error wrong = error_of(ErrorCode::invalid_argument, [&] {
    Device device = Device::open(0, paths::fake_cuda());
    engine.explain(small(), arch("sm_80"), &device);
  });
  CHECK(wrong.field() == "arch");
}

TEST_CASE("a caller's own task is prepared from its stored choice", "[engine]") {
  FakeGpu gpu;
  gpu.durations = {{0, 12}, {1, 8}};
  Engine engine(options(""));
  Device device = gpu.device();
  Task task = toy_task(2);
  engine.prepare(task, device);
  engine.tune(task, device, quick_policy());
  Kernel kernel = engine.prepare(task, device);
  std::vector<float> x(64, 3.0f), y(64);
  jit::Memory dx(device, 256), dy(device, 256);
  dx.upload(std::as_bytes(std::span(x)));
  void* pointers[] = {dx.data(), dy.data()};
  int ran = -1;
  gpu.on_launch = [&](const FakeLaunch& l) { ran = std::atoi(l.entry + 4); };
  jit::OwnedStream stream(device);
  kernel.launch(stream.get(), task.arguments(pointers, 1), 1, 64);
  stream.synchronize();
  dy.download(std::as_writable_bytes(std::span(y)));
  CHECK(ran == 1);
  CHECK(y[5] == 6.0f);
}

TEST_CASE("a casting problem is tuned bit by bit", "[engine]") {
  Problem problem = Problem::parse("cast x=f32 y=q8_1 rows=4 cols=256");
  if (!families("cast").back()->why_not(problem, target()).empty()) return;
  FakeGpu gpu;
  gpu.serve(problem, target());
  Engine engine(options(""));
  TunePolicy policy = quick_policy();
  policy.max_candidates = 2;
  TuneReport r = engine.tune(problem, gpu.device(), policy);
  CHECK(r.choice.grade == Grade::exact);
}

TEST_CASE("a problem nobody can serve names every family's reason", "[engine]") {
  FakeGpu gpu;
  FakeDevice turing{"Old", 7, 5, 40, 65536, 65536, 8ll << 30, 4 << 20};
  fake_cuda_set_device(0, &turing);
  Engine engine(options(""));
  Problem bf16 = Problem::parse("gemm x=bf16 w=bf16 y=bf16 m=2 n=64 k=256");
  auto plan = engine.plan(bf16, arch("sm_75"));  // at worst the reference
  CHECK_FALSE(plan.empty());
}

TEST_CASE("a problem that only the reference takes is warned of, once", "[engine]") {
  const auto messages = std::make_shared<Messages>();
  Engine engine(options("", messages));
  const Device cpu = Device::open_cpu({.threads = 1, .parallel_for = {}, .target = {}});
  const Problem exact = Problem::parse("gemm x=f32 w=nf4 y=f32 m=2 n=48 k=64");
  engine.prepare(exact, cpu);
  engine.prepare(exact.with_rows(3), cpu);
  CHECK(messages->warnings.size() == 1);
  CHECK(messages->any("only the reference kernel, which is slow, computes gemm x=f32 w=nf4"));
  // Families that refuse for one reason share a sentence.
  const std::string& warning = messages->warnings.front();
  CHECK(mentions(warning, "w is not packed in panels"));
  CHECK(warning.find("w is not packed in panels") == warning.rfind("w is not packed in panels"));
}

TEST_CASE("prepare() hits come from memory", "[engine]") {  // bench/ times them
  TempDir dir;
  FakeGpu gpu;
  Engine engine(warmed(dir));
  Device device = gpu.device();
  engine.prepare(small(), device);
  std::int64_t found = engine.stats().cache_hits;
  for (int i = 0; i < 1000; ++i) engine.prepare(small().with_rows(1 + i), device);
  CHECK(engine.stats().memory_hits == 1000);
  CHECK(engine.stats().cache_hits == found);
}
