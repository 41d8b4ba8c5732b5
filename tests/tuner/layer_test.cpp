// SPDX-License-Identifier: Apache-2.0
// Layers: their decisions for each target, what they launch on the driver double, and their results on this CPU.
#include <tilewright/layer.h>

#include <cmath>
#include <cstring>
#include <random>

#include "jit/device.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

LayerOptions from(const char* x_from, bool pack = true) { return {Format::parse(x_from), pack}; }

LayerProblems on(const char* arch_name, const char* problem, const LayerOptions& options = {}) {
  return layer_problems(Problem::parse(problem), arch(arch_name), options);
}

std::string text(const std::optional<Problem>& problem) { return problem ? problem->text() : ""; }

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> out(count);
  for (float& value : out) value = std::uniform_real_distribution<float>(-1, 1)(random);
  return out;
}

}  // namespace

TEST_CASE("a layer decides about tiles, workspace and who quantizes x", "[layer]") {
  const LayerProblems hopper = on("sm_90a", "gemm x=q8_1 w=q4_0 y=f16 m=7 n=128 k=256", from("f16"));
  CHECK(hopper.main.text() == "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256 pack=tiles workspace=34603008");
  CHECK(text(hopper.cast) == "cast x=f16 y=q8_1 rows=1 cols=256");
  CHECK(text(hopper.fused) == "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256 pack=tiles x_from=f16 workspace=34603008");
  CHECK(text(hopper.repack) == "pack w=q4_0 x=q8_1 n=128 k=256");
  CHECK(hopper.few == 1);

  const LayerProblems stored = on("sm_90a", "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256", from("f16", false));
  CHECK(stored.main.text() == "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256 workspace=34603008");
  // Only the reference would compute the fused problem of these tiles: one token took 177 ms of Gemma 3 270M.
  for (const char* text : {"gemm x=q8_1 w=q5_0 y=f16 m=1 n=1024 k=640", "gemm x=q8_1 w=q8_0 y=f16 m=1 n=256 k=640"}) {
    const LayerProblems odd = on("sm_90a", text, from("f16"));
    CHECK(odd.main.as<Gemm>()->packing == Packing::tiles);
    CHECK(!odd.fused);
    CHECK(odd.few == 0);
    CHECK(odd.cast);
  }
  CHECK(text(stored.repack).empty());
  CHECK(stored.few == 4);

  const LayerProblems ampere = on("sm_80", "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256", from("bf16"));
  CHECK(ampere.main.text() == "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256");
  CHECK(text(ampere.cast) == "cast x=bf16 y=q8_1 rows=1 cols=256");

  // Scales of whole rows are known after the cast alone; floats need none.
  const LayerProblems rows = on("sm_90a", "gemm x=e4m3_row w=nvfp4 y=bf16 m=1 n=128 k=256 global=mul", from("bf16"));
  CHECK(rows.cast);
  CHECK(!rows.fused);
  CHECK(rows.few == 0);
  for (const LayerProblems& plain : {on("sm_90a", "gemm x=f16 w=q4_0 y=f16 m=1 n=128 k=256"),
                                     on("sm_90a", "gemm x=f16 w=q4_0 y=f16 m=1 n=128 k=256", from("f16"))}) {
    CHECK(!plain.cast);
    CHECK(!plain.fused);
  }

  // What the problem says itself is kept.
  CHECK(on("sm_90a", "gemm x=f16 w=q4_0 y=f16 m=1 n=128 k=256 workspace=65536").main.text() ==
        "gemm x=f16 w=q4_0 y=f16 m=1 n=128 k=256 pack=tiles workspace=65536");

  const LayerProblems cpu = on("x86-64-v3", "gemm x=q8_1 w=q4_0 y=f32 m=1 n=64 k=256", from("f32"));
  CHECK(cpu.main.text() == "gemm x=q8_1 w=q4_0 y=f32 m=1 n=64 k=256 pack=panels x_from=f32");
  CHECK(!cpu.cast);
  const LayerProblems experts = on("x86-64-v3", "gemm x=q8_1 w=q4_0 y=f32 m=3 n=64 k=256 groups=4", from("f32"));
  CHECK(experts.main.text() == "gemm x=q8_1 w=q4_0 y=f32 m=3 n=64 k=256 pack=panels x_from=f32 groups=4");

  const LayerProblems conv =
      on("sm_90a", "conv x=e4m3_tensor w=e4m3_row y=f16 n=2 c=32 in=5x6 k=16 kernel=3 pad=1 global=mul",
         from("f16", false));
  CHECK(conv.main.as<Conv>()->workspace == Gemm::kTileWorkspace);
  CHECK(text(conv.cast) == "cast x=f16 y=e4m3_tensor rows=1 cols=32");
}

TEST_CASE("a layer refuses what it cannot decide", "[layer]") {
  const auto field = [](ErrorCode code, const char* problem, const LayerOptions& options = {}) {
    return std::string(error_of(code, [&] { on("sm_90a", problem, options); }).field());
  };
  CHECK(field(ErrorCode::invalid_argument, "cast x=f32 y=q8_1 rows=1 cols=32") == "problem");
  CHECK(field(ErrorCode::invalid_argument, "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256", from("q8_0")) == "x_from");
  CHECK(field(ErrorCode::invalid_argument, "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256 x_from=f32", from("f16")) ==
        "x_from");
  CHECK(field(ErrorCode::unsupported, "gemm x=e4m3_tensor w=nvfp4 y=f16 m=1 n=128 k=256 global=div", from("f16")) ==
        "x_from");
}

TEST_CASE("a layer launches a cast and a gemm, or the fused kernel for few rows", "[layer]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine engine(options(""));
  const Layer layer(engine, Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=40 k=64"), device, from("f32", false));
  REQUIRE(layer.problems().few == 4);
  CHECK(layer.weight_bytes(StreamName::data) == 40 * 2 * 18);
  CHECK(layer.weight_bytes(StreamName::scales) == 0);

  Memory x(device, 9 * 64 * 4), w(device, 40 * 2 * 18), y(device, 9 * 40 * 4), scratch(device, layer.scratch_bytes(9));
  CHECK(layer.scratch_bytes(4) == 0);
  CHECK(layer.scratch_bytes(9) >= 9 * 2 * 36);
  std::vector<std::pair<const void*, void*>> seen;  // x.data and workspace of each gemm; null of a cast
  std::vector<std::int64_t> rows;
  gpu.on_launch = [&](const FakeLaunch& l) {
    if (l.param_bytes[0] != sizeof(GemmArgs)) {
      CastArgs cast;
      std::memcpy(&cast, l.params[0], sizeof cast);
      CHECK(cast.x.data == x.data());
      CHECK(cast.y.data == scratch.data());
      seen.push_back({nullptr, nullptr});
      rows.push_back(cast.rows);
      return;
    }
    GemmArgs gemm;
    std::memcpy(&gemm, l.params[0], sizeof gemm);
    seen.push_back({gemm.x.data, gemm.workspace});
    rows.push_back(gemm.m);
  };
  GemmArgs args;
  args.x.data = x.data();
  args.w.data = w.data();
  args.y = y.data();
  OwnedStream one(device), other(device);
  const auto launch = [&](std::int64_t m, const OwnedStream& stream, void* room) {
    args.m = m;
    layer.launch(stream.get(), args, room);
    stream.synchronize();
  };
  launch(4, one, nullptr);
  launch(5, one, scratch.data());
  launch(9, other, scratch.data());
  launch(0, other, nullptr);
  REQUIRE(seen.size() == 5);
  CHECK(rows == std::vector<std::int64_t>{4, 5, 5, 9, 9});
  CHECK(seen[0].first == x.data());
  CHECK(seen[1].first == nullptr);
  CHECK(seen[2].first == scratch.data());
  // One workspace for each stream, which was zero at first.
  const bool shares = layer.problems().main.as<Gemm>()->workspace > 0;
  CHECK((seen[0].second != nullptr) == shares);
  CHECK(seen[0].second == seen[2].second);
  CHECK((seen[4].second != seen[0].second) == shares);

  const auto field = [&](const std::function<void()>& action) {
    return std::string(error_of(ErrorCode::invalid_argument, action).field());
  };
  CHECK(field([&] { launch(5, one, nullptr); }) == "scratch");
  CHECK(field([&] { launch(-1, one, scratch.data()); }) == "m");
  args.ldx = 128;
  CHECK(field([&] { launch(5, one, scratch.data()); }) == "ldx");
  args.ldx = 0;
  args.w = {};
  CHECK(field([&] { launch(5, one, scratch.data()); }) == "w.data");
}

TEST_CASE("each stream has a workspace, and captures share another", "[layer]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine engine(options(""));
  constexpr std::int64_t m = 512, n = 1024, k = 512;
  const Layer layer(engine, Problem::parse("gemm x=f16 w=f16 y=f16 m=1 n=1024 k=512 workspace=65536"), device,
                    {std::nullopt, false});
  REQUIRE(layer.kernel().candidate(m).family == "wgmma");
  Memory x(device, m * k * 2), w(device, n * k * 2), y(device, m * n * 2), own(device, 65536);
  std::vector<void*> seen;
  gpu.on_launch = [&](const FakeLaunch& l) {
    GemmArgs gemm;
    std::memcpy(&gemm, l.params[0], sizeof gemm);
    seen.push_back(gemm.workspace);
  };
  GemmArgs args;
  args.x.data = x.data();
  args.w.data = w.data();
  args.y = y.data();
  args.m = m;
  OwnedStream stream(device), second(device);
  layer.launch(stream.get(), args);
  stream.synchronize();
  layer.launch(second.get(), args);
  second.synchronize();
  const jit::Graph first(device, stream, [&](Stream s) { layer.launch(s, args); });
  const jit::Graph another(device, second, [&](Stream s) { layer.launch(s, args); });
  args.m = -1;  // of a layer without a fused kernel
  CHECK(error_of(ErrorCode::invalid_argument, [&] { layer.launch(stream.get(), args); }).field() == "m");
  args.m = m;
  args.workspace = own.data();
  const jit::Graph with_own(device, stream, [&](Stream s) { layer.launch(s, args); });
  for (const jit::Graph* graph : {&first, &another, &with_own}) graph->launch(stream.get());
  stream.synchronize();
  CHECK(fake_cuda_violation_count() == 0);
  REQUIRE(seen.size() == 5);
  CHECK(seen[0] != nullptr);
  CHECK(seen[1] != nullptr);
  CHECK(seen[1] != seen[0]);
  CHECK(seen[2] != nullptr);
  CHECK(seen[2] != seen[0]);
  CHECK(seen[2] != seen[1]);
  CHECK(seen[3] == seen[2]);
  CHECK(seen[4] == own.data());
}

TEST_CASE("a layer on this CPU computes what a kernel does, for every number of rows", "[layer]") {
  if (host_arch().cpu->vector_bytes == 0) return;  // it has the reference alone
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}, .target = {}});
  Engine engine(options(""));
  constexpr std::int64_t n = 48, k = 96;
  const Format q4_0 = Format::parse("q4_0");
  std::vector<std::byte> stored(static_cast<std::size_t>(q4_0.total_bytes(n, k)));
  q4_0.info().encode(random_floats(n * k, 1).data(), n, k, {stored.data(), nullptr, nullptr}, 0);
  std::vector<float> w(n * k);
  q4_0.info().decode({stored.data(), nullptr, nullptr}, n, k, w.data());
  Layer layer(engine, Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=48 k=96"), device, from("f32"));
  CHECK(layer.packed());
  layer.load(nullptr, {stored.data(), nullptr, nullptr});
  std::fill(stored.begin(), stored.end(), std::byte{});  // the layer has its own
  for (std::int64_t m : {1, 2, 17, 65}) {
    const std::vector<float> x = random_floats(static_cast<std::size_t>(m * k), static_cast<unsigned>(m));
    std::vector<float> y(static_cast<std::size_t>(m * n));
    GemmArgs args;
    args.x.data = x.data();
    args.y = y.data();
    args.m = m;
    CHECK(layer.scratch_bytes(m) == 0);
    layer.launch(nullptr, args);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const double product =
              static_cast<double>(x[static_cast<std::size_t>(i * k + l)]) * w[static_cast<std::size_t>(j * k + l)];
          sum += product;
          size += std::fabs(product);
        }
        // x is rounded to 8 bits of its block's largest magnitude, 1 at most.
        REQUIRE(std::fabs(y[static_cast<std::size_t>(i * n + j)] - sum) <= 0.01 * size + k * 0.5 / 127);
      }
  }
}
