// SPDX-License-Identifier: Apache-2.0
// An operation that the library has never heard of, from a folder and a line of a list: planned, prewarmed, emulated,
// tuned, stored, listed and run like its own.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "emulator/emulator.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "operation/row_scale/row_scale.h"
#include "row_scale/kernel.cuh"
#include "support/paths.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using test::mentions;

namespace {

constexpr const char* kText = "row_scale x=f32 y=f16 rows=8 cols=96";

const RowScale& fields() {
  static const RowScale f{.x = Format::parse("f32"), .y = Format::parse("f16"), .rows = 8, .cols = 96};
  return f;
}

// The launch of a kernel on the driver double, whose device memory is the host's.
struct HostLaunch {
  bool wrong = false;
  static void handle(const FakeLaunch* launch, void* self) {
    if (!std::string_view(launch->entry).starts_with("tw_")) return;  // the tuner's own
    const auto& args = *static_cast<const RowScaleArgs*>(launch->params[0]);
    const std::int64_t cols = fields().cols;
    for (std::int64_t i = 0; i < args.rows * cols; ++i) {
      const float v = static_cast<const float*>(args.x)[i] * args.scales[i / cols];
      Format::parse("f16").info().encode(&v, 1, 1, {static_cast<char*>(args.y) + 2 * i, nullptr, nullptr}, 0);
    }
    if (static_cast<HostLaunch*>(self)->wrong) static_cast<unsigned char*>(args.y)[5] ^= 0x40;
  }
};

struct Ran {
  int code;
  std::string out;
};
Ran tool(const std::string& arguments) {
  const test::TempDir scratch;
  const std::string out = scratch / "out";
  const int status = std::system(("TILEWRIGHT_DRIVER=/nonexistent '" + paths::binary_dir() +
                                  "/bin/tilewright_with_row_scale' " + arguments + " >'" + out + "' 2>&1 </dev/null")
                                     .c_str());
  std::ostringstream text;
  text << std::ifstream(out).rdbuf();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text.str()};
}

}  // namespace

TEST_CASE("a stranger's operation has a text, an identity and neighbours", "[operation]") {
  const Problem p = Problem::parse(kText);
  CHECK(p.text() == kText);
  CHECK(p == Problem(fields()));
  CHECK(p.op() == "row_scale");
  CHECK(p.as<RowScale>()->cols == 96);
  CHECK(p.as<Gemm>() == nullptr);
  CHECK(p.with_rows(3).text() == "row_scale x=f32 y=f16 rows=3 cols=96");
  CHECK(p.same_but_rows(p.with_rows(3)));
  CHECK(p.hash() == p.with_rows(3).hash());
  const Problem other = Problem::parse("row_scale x=f32 y=f16 rows=8 cols=192 factor=0.5");
  CHECK(other.text() == "row_scale x=f32 y=f16 rows=8 cols=192 factor=0.5");
  CHECK(p.distance(other) < 0);
  CHECK(p.distance(Problem::parse("row_scale x=f32 y=f16 rows=8 cols=192")) == 1);
  const Error error = test::error_of(ErrorCode::invalid_argument,
                                     [] { Problem::parse("row_scale x=f32 y=f16 rows=8 cols=9 facto=2"); });
  CHECK(error.field() == "facto");
  CHECK(mentions(error.what(), "did you mean factor?"));
  CHECK(test::error_of(ErrorCode::unsupported, [] {
          Problem::parse("row_scale x=q4_0 y=f16 rows=8 cols=32");
        }).field() == "x");
}

TEST_CASE("a problem that was moved from is what it was", "[operation]") {
  Problem problem = Problem::parse("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64");
  const Problem moved = std::move(problem);
  CHECK(problem == moved);
  CHECK(problem.text() == moved.text());
  problem = Problem::parse("cast x=f32 y=q8_1 rows=4 cols=64");
  CHECK(moved.op() == "gemm");
}

TEST_CASE("a stranger's operation is planned, prewarmed and found in the store", "[operation]") {
  const test::TempDir home;
  const Problem p = Problem::parse(kText);
  const Arch* targets[] = {&test::target()};
  {
    Engine engine(test::options(home / "cache.db"));
    CHECK(engine.plan(p, test::target()).size() == 4);
    for (const Planned& one : engine.plan(p, test::target())) CHECK(one.plan.y == GridAxis{});
    CHECK(mentions(engine.emit(p, test::target()).text, "tw::row_scale::Plain"));
    const PrewarmReport report = engine.prewarm({&p, 1}, targets);
    CHECK(report.compiled >= 3);  // and what measuring needs
    CHECK(report.failed == 0);
  }
  Engine again(test::options(home / "cache.db"));
  CHECK(again.prewarm({&p, 1}, targets).compiled == 0);
}

TEST_CASE("a stranger's operation is tuned on the driver double, and its choice is stored", "[operation]") {
  const test::TempDir home;
  const Problem p = Problem::parse(kText);
  test::FakeGpu gpu;
  HostLaunch host;
  fake_cuda_set_launch_handler(&HostLaunch::handle, &host);
  {
    Engine engine(test::options(home / "cache.db"));
    const TuneReport report = engine.tune(p, gpu.device(), test::quick_policy());
    CHECK(report.choice.grade == Grade::exact);
    CHECK(report.outcomes.size() >= 3);
    for (const Outcome& o : report.outcomes) CHECK(std::string(to_string(o.kind)) == "measured");
  }
  Engine(test::options(home / "cache.db")).prepare(p, gpu.device());  // the other buckets' first choices
  Engine engine(test::options(home / "cache.db"));
  CHECK(engine.choose(p, gpu.device()).grade == Grade::exact);
  const Kernel kernel = engine.prepare(p, gpu.device());
  CHECK(engine.stats().compiled == 0);

  alignas(16) float x[96], scales[1] = {3};
  alignas(16) unsigned short y[96] = {};
  for (int i = 0; i < 96; ++i) x[i] = static_cast<float>(i);
  RowScaleArgs args{x, scales, y, 1};
  kernel.launch(nullptr, args);
  CHECK(y[2] == 0x4600);  // 6
  std::fill(std::begin(y), std::end(y), static_cast<unsigned short>(0));
  void* const buffers[] = {x, scales, y};
  kernel.launch_buffers(nullptr, buffers, 1);
  CHECK(y[2] == 0x4600);
  CHECK(kernel.contract().pointers[1].name == std::string_view("scales"));
  args.scales = nullptr;
  CHECK(test::error_of(ErrorCode::invalid_argument, [&] { kernel.launch(nullptr, args); }).field() == "scales");
  args.scales = scales, args.rows = -1;
  CHECK(test::error_of(ErrorCode::invalid_argument, [&] { kernel.launch(nullptr, args); }).field() == "rows");
  CHECK(test::error_of(ErrorCode::invalid_argument, [&] { kernel.launch(nullptr, GemmArgs{}); }).field() == "args");
}

TEST_CASE("a stranger's kernels that are wrong are found out", "[operation]") {
  test::FakeGpu gpu;
  HostLaunch host{.wrong = true};
  fake_cuda_set_launch_handler(&HostLaunch::handle, &host);
  Engine engine(test::options(""));
  try {
    for (const Outcome& o : engine.tune(Problem::parse(kText), gpu.device(), test::quick_policy()).outcomes)
      CHECK(std::string(to_string(o.kind)) == "wrong");
  } catch (const Error& e) {
    CHECK(mentions(e.what(), "wrong"));
  }
}

namespace {

template <class X, class Y, int threads>
void emulate(std::int64_t rows, std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols)), scales(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50);
  for (std::size_t r = 0; r < scales.size(); ++r) scales[r] = 0.25f * static_cast<float>(r + 1);
  std::vector<tw::u8> x(values.size() * X::kDataBytes), y(values.size() * Y::kDataBytes, 0xff);
  for (std::size_t i = 0; i < values.size(); ++i) X::encode(&values[i], &x[i * X::kDataBytes], nullptr, 1.0f, 0);
  using Kernel = tw::row_scale::Plain<X, Y, threads>;
  const tw::row_scale::Args args{x.data(), scales.data(), y.data(), rows};
  const tw::row_scale::Shape shape{cols, 2.0f};
  tw::emu::Launch launch;
  launch.grid = {static_cast<unsigned>((cols + threads - 1) / threads * rows), 1, 1};
  launch.threads = threads;
  tw::emu::run(launch, [&] { Kernel::run(args, shape); });
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float expected = values[i] * (2.0f * scales[i / static_cast<std::size_t>(cols)]);
    tw::u8 code[4];
    Y::encode(&expected, code, nullptr, 1.0f, 0);
    REQUIRE(std::memcmp(code, &y[i * Y::kDataBytes], Y::kDataBytes) == 0);
  }
}

}  // namespace

TEST_CASE("a stranger's kernel runs in the emulator", "[operation]") {
  emulate<tw::fmt::f32, tw::fmt::f16, 64>(3, 65);
  emulate<tw::fmt::bf16, tw::fmt::f32, 128>(1, 128);
  emulate<tw::fmt::f16, tw::fmt::bf16, 256>(5, 1);
}

TEST_CASE("the tool lists a stranger's operation, plans it and runs it on the CPU", "[operation]") {
  CHECK(mentions(tool("operations").out, "row_scale"));
  CHECK(mentions(tool("families").out, "one thread per element"));
  CHECK(mentions(tool("--help").out, "row_scale x=FORMAT y=FORMAT rows=INTEGER cols=INTEGER [factor=NUMBER]"));
  CHECK(mentions(tool("plan " + std::string(kText) + " --arch sm_80").out, "plain threads="));
  const Ran ran = tool("run " + std::string(kText) + " factor=3 --cpu");
  CHECK(ran.code == 0);
  CHECK(mentions(ran.out, "verified"));
  CHECK(tool("run row_scale x=f32 y=f32 rows=1 cols=0 --cpu").code == 1);
}
