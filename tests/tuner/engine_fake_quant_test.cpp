// SPDX-License-Identifier: Apache-2.0
// Fake quantizations through an engine: planned, prewarmed, tuned on the driver double, stored, launched.
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"

#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// The kernels of a problem of f32 on the driver double, whose device memory is the host's.
struct HostLaunch {
  std::int64_t cols;
  int block;
  int launches = 0;
  bool wrong = false;
  static void handle(const FakeLaunch* launch, void* self) {
    if (!std::string_view(launch->entry).starts_with("tw_")) return;  // the tuner's own
    auto& host = *static_cast<HostLaunch*>(self);
    const auto& args = *static_cast<const Fp4FakeQuantArgs*>(launch->params[0]);
    fp4_fake_quant::fake_quantize(static_cast<const float*>(args.x), static_cast<float*>(args.y), args.rows, host.cols,
                                  host.block, args.amax);
    ++host.launches;
    if (host.wrong) static_cast<unsigned char*>(args.y)[static_cast<std::size_t>(host.launches) % 4] ^= 0x40;
  }
};

void check_engine(const Problem& problem, HostLaunch host) {
  INFO(problem.text());
  const TempDir home;
  const Arch* targets[] = {&target()};
  {
    Engine engine(options(home / "cache.db"));
    CHECK(engine.plan(problem, target()).size() > 4);
    const PrewarmReport report = engine.prewarm({&problem, 1}, targets);
    CHECK(report.compiled > 0);
    CHECK(report.failed == 0);
  }
  CHECK(Engine(options(home / "cache.db")).prewarm({&problem, 1}, targets).compiled == 0);

  FakeGpu gpu;
  fake_cuda_set_launch_handler(&HostLaunch::handle, &host);
  {
    Engine engine(options(home / "cache.db"));
    const TuneReport report = engine.tune(problem, gpu.device(), quick_policy());
    CHECK(report.choice.grade == Grade::exact);
    for (const Outcome& o : report.outcomes) CHECK(std::string(to_string(o.kind)) == "measured");
  }
  Engine engine(options(home / "cache.db"));
  CHECK(engine.choose(problem, gpu.device()).grade == Grade::exact);
  const Kernel kernel = engine.prepare(problem, gpu.device());

  alignas(16) float x[512], y[512];
  for (int i = 0; i < 512; ++i) x[i] = static_cast<float>(i % 7);
  const float amax = 2688;
  Fp4FakeQuantArgs args{x, y, &amax, 1};
  kernel.launch(nullptr, args);
  CHECK(y[5] == 4);
  args.y = x;
  kernel.launch(nullptr, args);
  CHECK(x[5] == 4);
  const int launches = host.launches;
  args.rows = 0;
  kernel.launch(nullptr, args);
  args.rows = 1;
  const auto field = [&] {
    return error_of(ErrorCode::invalid_argument, [&] { kernel.launch(nullptr, args); }).field();
  };
  args.amax = nullptr;
  CHECK(field() == "amax");
  args.amax = reinterpret_cast<const float*>(reinterpret_cast<const char*>(&amax) + 2);
  CHECK(field() == "amax");
  args.amax = &amax, args.x = x + 1;
  CHECK(field() == "x");
  args.x = x, args.y = nullptr;
  CHECK(field() == "y");
  args.y = y, args.rows = -1;
  CHECK(field() == "rows");
  CHECK(error_of(ErrorCode::invalid_argument, [&] { kernel.launch(nullptr, CastArgs{}); }).field() == "args");
  CHECK(host.launches == launches);
}

}  // namespace

TEST_CASE("fp4_fake_quant is planned, prewarmed, tuned, stored and launched", "[engine]") {
  check_engine(Problem::parse("fp4_fake_quant x=f32 y=f32 rows=8 cols=96 block=32"), {96, 32});
  check_engine(Problem::parse("fp4_fake_quant x=f32 y=f32 rows=8 cols=81 block=64"), {81, 64});
}

TEST_CASE("fake quantizations that are wrong are found out", "[engine]") {
  FakeGpu gpu;
  HostLaunch host{96, 32, 0, true};
  fake_cuda_set_launch_handler(&HostLaunch::handle, &host);
  Engine engine(options(""));
  const Problem problem = Problem::parse("fp4_fake_quant x=f32 y=f32 rows=8 cols=96 block=32");
  try {
    for (const Outcome& o : engine.tune(problem, gpu.device(), quick_policy()).outcomes)
      CHECK(std::string(to_string(o.kind)) == "wrong");
  } catch (const Error& e) {
    CHECK(mentions(e.what(), "wrong"));
  }
}
