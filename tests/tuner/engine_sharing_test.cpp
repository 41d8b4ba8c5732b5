// SPDX-License-Identifier: Apache-2.0
// What an Engine shares: one assembly between threads, modules between problems, prepared kernels up to a cap.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tilewright/store.h>

#include "support/paths.h"
#include "tuner/engine_impl.h"
#include "tuner/keys.h"
#include "tuner/task.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

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
