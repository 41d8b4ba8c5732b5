// SPDX-License-Identifier: Apache-2.0
// Engine, whole: real templates, the real compiler, the driver double, kernels computed on the host. Small problems.
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <thread>

#include <tilewright/store.h>

#include "jit/device.h"
#include "support/paths.h"
#include "tuner/build.h"
#include "tuner/engine_impl.h"
#include "tuner/keys.h"
#include "tuner/rank.h"
#include "tuner/task.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// One cache for the cases that only read what others compiled: NVRTC is most of this file's time.
const std::string& warm_cache() {
  static TempDir dir;
  static const std::string path = [] {
    Engine engine(options(dir / "warm.db"));
    PrewarmPolicy policy;
    policy.top = 2;
    const Arch* targets[] = {&target()};
    PrewarmReport r = engine.prewarm(std::span(&small(), 1), targets, policy);
    REQUIRE(r.failed == 0);
    return dir / "warm.db";
  }();
  return path;
}

std::string engine_compiler(const Engine& engine) { return compiler_version(CompileOptions::of(engine.options())); }

// A private copy of it.
Options warmed(const TempDir& dir, std::shared_ptr<Messages> messages = nullptr) {
  StoreOptions from;
  from.path = warm_cache();
  Store(from).export_to(dir / "copy.db");
  return options(dir / "copy.db", messages);
}

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
  CHECK(mentions(e.what(), "nothing that is compiled would be kept"));
  CHECK(compiled <= 3);
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

TEST_CASE("threads share one Engine", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  gpu.serve(small(), target());
  Engine engine(warmed(dir));
  Device devices[] = {gpu.device(0), gpu.device(1)};
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int i = 0; i < 16; ++i)
    threads.emplace_back([&, i] {
      try {
        for (int k = 0; k < 3; ++k) {
          engine.prepare(small().with_rows(1 + i), devices[(i + k) % 2]);
          engine.choose(small(), devices[k % 2]);
          if (i % 8 == 0 && k == 1) engine.tune(small(), devices[i / 8], quick_policy());
          engine.stats();
        }
      } catch (const std::exception&) {
        ++failures;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(failures == 0);
  CHECK(engine.stats().compiled == 0);
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("threads that ask for one cold problem assemble it once", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Device device = gpu.device();
  long once = 0;
  {
    Engine engine(warmed(dir));
    const long before = fake_cuda_calls("cuModuleGetFunction");
    engine.prepare(small(), device);
    once = fake_cuda_calls("cuModuleGetFunction") - before;
  }
  Engine engine(options(dir / "copy.db"));
  const long before = fake_cuda_calls("cuModuleGetFunction");
  std::vector<std::thread> threads;
  std::atomic<int> ready{0}, served{0};
  for (int i = 0; i < 32; ++i)
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < 32) std::this_thread::yield();
      engine.prepare(small().with_rows(1 + i), device);
      ++served;
    });
  for (auto& t : threads) t.join();
  CHECK(served == 32);
  CHECK(fake_cuda_calls("cuModuleGetFunction") - before == once);
  CHECK(engine.stats().cache_hits <= kBucketCount);
}

TEST_CASE("threads that wait for one assembly share its error, and the next one tries again", "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Options o = options("");
  o.compile = false;
  Engine engine(o);
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      try {
        engine.prepare(small(), device);
      } catch (const Error& e) {
        refused += e.code() == ErrorCode::would_tune;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(refused == 8);
  error_of(ErrorCode::would_tune, [&] { engine.prepare(small(), device); });
}

TEST_CASE("a log callback may prepare what another thread is preparing", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Device device = gpu.device();
  Options o = warmed(dir);
  Engine* self = nullptr;
  std::atomic<int> inner{0};
  std::thread waiter;
  o.log = [&](LogLevel, std::string_view text) {
    if (!mentions(std::string(text), "is ignored") || ++inner > 1) return;
    waiter = std::thread([&] { self->prepare(small(), device); });  // waits for the outer one
    self->prepare(small(), device);                                 // must not
  };
  Engine engine(o);
  self = &engine;
  StoredChoice stale;
  stale.problem = tuner::bucketed(small()).text(), stale.candidate = {"mma", {{"no", 1}}}, stale.microseconds = 5;
  REQUIRE(engine.store().put_choice(tuner::choice_key(device), stale));
  engine.prepare(small(), device);
  waiter.join();
  CHECK(inner >= 2);
}

TEST_CASE("problems that differ in alpha share modules, and prepared_cap bounds how many are kept", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Device device = gpu.device();
  Options o = warmed(dir);
  o.prepared_cap = 2;
  Engine engine(o);
  const auto with_alpha = [](double alpha) {
    Gemm g = *small().as<Gemm>();
    g.alpha = alpha;
    return Problem(g);
  };
  const auto hits = [&](double alpha) {
    const std::int64_t before = engine.stats().memory_hits;
    engine.prepare(with_alpha(alpha), device);
    return engine.stats().memory_hits - before;
  };
  std::optional<Kernel> kept = engine.prepare(with_alpha(2), device);
  const long modules = fake_cuda_live("module");
  CHECK(modules >= 1);
  for (const double alpha : {3, 4, 5, 6}) engine.prepare(with_alpha(alpha), device);
  CHECK(fake_cuda_live("module") == modules);
  engine.prepare(with_alpha(5), gpu.device());  // another Device of the same context
  CHECK(fake_cuda_live("module") == modules);
  CHECK(hits(5) == 1);
  CHECK(hits(2) == 0);  // gone, and 6 with it, which was used before 5
  CHECK(hits(5) == 1);
  CHECK(hits(6) == 0);
  alignas(16) std::byte somewhere[16];
  GemmArgs args;
  args.x.data = args.w.data = args.y = somewhere;
  args.m = 1;
  const long launches = gpu.launches;
  kept->launch(nullptr, args);
  CHECK(gpu.launches == launches + 1);
  float seen = 0;  // a launch's own factor needs no other problem
  gpu.on_launch = [&](const FakeLaunch& l) { seen = static_cast<const GemmArgs*>(l.params[0])->alpha; };
  for (const float alpha : {-2.5f, 0.0f, 7.0f}) {
    args.alpha = alpha;
    kept->launch(nullptr, args);
    CHECK(seen == alpha);
  }
  args.beta = 2;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { kept->launch(nullptr, args); }).field() == "beta");
  CHECK(fake_cuda_live("module") == modules);
  o.prepared_cap = 0;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { Engine none(o); }).field() == "options.prepared_cap");
}

TEST_CASE("problems that differ in n and k share the modules of the candidates that they share", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  Engine engine(warmed(dir));
  const Device device = gpu.device();
  std::set<std::string> loaded;
  std::vector<Kernel> kernels;  // a Kernel keeps its modules
  const auto prepare = [&](std::int64_t n, std::int64_t k) {
    Gemm g = *small().as<Gemm>();
    g.n = n, g.k = k;
    kernels.push_back(engine.prepare(Problem(g), device));
    std::set<std::string> candidates;
    for (std::int64_t rows = 1; rows <= 10000; ++rows) candidates.insert(kernels.back().candidate(rows).text());
    const std::size_t before = loaded.size();
    loaded.insert(candidates.begin(), candidates.end());
    INFO("n " << n << " k " << k);
    CHECK(fake_cuda_live("module") == static_cast<long>(loaded.size()));  // a candidate is one image, whatever n and k
    return candidates.size() - (loaded.size() - before);                  // how many were there already
  };
  CHECK(prepare(64, 256) == 0);
  CHECK(prepare(96, 256) > 0);
  CHECK(prepare(128, 256) > 0);
  CHECK(prepare(96, 384) > 0);
  CHECK(prepare(64, 512) > 0);
  CHECK(fake_cuda_image_count() == loaded.size());  // and each is loaded once
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

TEST_CASE("prepared objects are told apart by every field but the rows", "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  const auto key = [&](const char* text) { return tuner::prepared_key(Problem::parse(text), device); };
  const tuner::PreparedEqual equal;
  const tuner::PreparedHash hash;
  const auto gemm = key("gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=64");
  CHECK(equal(gemm, key("gemm x=f16 w=q4_0 y=f16 m=70 n=64 k=64")));
  CHECK(hash(gemm) == hash(key("gemm x=f16 w=q4_0 y=f16 m=70 n=64 k=64")));
  const auto packed = key("gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=64 pack=tiles");
  CHECK_FALSE(equal(gemm, packed));
  CHECK(hash(gemm) != hash(packed));
  const auto pack = key("pack w=q4_0 x=f16 n=64 k=64");
  CHECK(equal(pack, pack));
  for (const char* other : {"pack w=q4_0 x=f16 n=64 k=64 inverse=1", "pack w=q4_0 x=f16 n=128 k=64",
                            "pack w=q4_0 x=bf16 n=64 k=64", "cast x=f32 y=q4_0 rows=64 cols=64"}) {
    CHECK_FALSE(equal(pack, key(other)));
    CHECK(hash(pack) != hash(key(other)));
  }
  CHECK_FALSE(equal(key("gemm x=e4m3_row w=e4m3_row y=f16 m=2 n=64 k=128"),
                    key("gemm x=e4m3_row w=e4m3_row y=f16 m=2 n=64 k=128 accum=fast")));
  const auto from = key("gemm x=q8_1 w=q4_0 y=f32 m=2 n=64 k=64 x_from=f32");
  for (const char* other :
       {"gemm x=q8_1 w=q4_0 y=f32 m=2 n=64 k=64", "gemm x=q8_1 w=q4_0 y=f32 m=2 n=64 k=64 x_from=f16"}) {
    CHECK_FALSE(equal(from, key(other)));
    CHECK(hash(from) != hash(key(other)));
  }
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
