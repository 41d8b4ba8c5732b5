// SPDX-License-Identifier: Apache-2.0
// Engine and packed weights: which problem to pack for, packing on the device, tuning on what was packed.
#include <atomic>

#include "jit/device.h"
#include "tuner/keys.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("packing is verified byte by byte, both ways", "[engine]") {
  for (const char* text : {"pack w=q4_0 x=f16 n=128 k=192", "pack w=nvfp4 x=bf16 n=64 k=128 inverse=1",
                           "pack w=int4_row x=int8_row n=64 k=256"}) {
    INFO(text);
    const Problem problem = Problem::parse(text);
    FakeGpu gpu;
    gpu.serve(problem, target());
    Engine engine(options(""));
    const TuneReport right = engine.tune(problem, gpu.device(), quick_policy());
    CHECK(right.choice.grade == Grade::exact);
    CHECK(right.choice.candidate.text() == "tiles");
    Engine other(options(""));
    gpu.all_bad = true;
    const Error wrong = error_of(ErrorCode::unsupported, [&] { other.tune(problem, gpu.device(), quick_policy()); });
    CHECK(mentions(wrong.what(), "tiles: wrong: "));
    CHECK(mentions(wrong.what(), "byte 100"));
  }
}

TEST_CASE("an engine packs weights on the device", "[engine]") {
  FakeGpu gpu;
  const Device device = gpu.device();
  Engine engine(options(""));
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f32 m=2 n=128 k=192 pack=tiles");
  const Gemm& g = *problem.as<Gemm>();
  gpu.serve(Pack{g.w, g.x, g.n, g.k, false}, target());
  std::vector<std::byte> rows(static_cast<std::size_t>(g.w.total_bytes(g.n, g.k)));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i * 7 + i / 256);
  std::vector<std::byte> data(static_cast<std::size_t>(packed_bytes(g, StreamName::data))),
      scales(static_cast<std::size_t>(packed_bytes(g, StreamName::scales)));
  std::vector<std::byte> expected_data(data.size()), expected_scales(scales.size());
  pack_weights(g, {rows.data(), nullptr, nullptr}, {expected_data.data(), expected_scales.data(), nullptr});
  jit::Memory from(device, rows.size()), to(device, data.size()), to_scales(device, scales.size());
  from.upload(rows);
  unsigned blocks = 0;
  gpu.on_launch = [&](const FakeLaunch& l) { blocks = l.grid[0]; };
  jit::OwnedStream stream(device);
  engine.pack(g, device, stream.get(), {from.data(), nullptr, nullptr}, {to.data(), to_scales.data(), nullptr});
  stream.synchronize();
  to.download(data);
  to_scales.download(scales);
  CHECK(data == expected_data);
  CHECK(scales == expected_scales);
  CHECK(blocks == 2 * 3);
  const auto field = [&](const Gemm& gemm, Operand w, MutableOperand tiles) {
    return std::string(
        error_of(ErrorCode::invalid_argument, [&] { engine.pack(gemm, device, nullptr, w, tiles); }).field());
  };
  Gemm plain = g;
  plain.packing = Packing::none;
  const Operand w{from.data(), nullptr, nullptr};
  const MutableOperand tiles{to.data(), to_scales.data(), nullptr};
  CHECK(field(plain, w, tiles) == "pack");
  CHECK(field(g, {}, tiles) == "w.data");
  CHECK(field(g, w, {to.data(), nullptr, nullptr}) == "tiles.scales");
  // Kernels say which form of w they miss, and refuse the arguments of another operation.
  const Kernel packed = engine.prepare(problem, device);
  const GemmArgs args{{from.data(), nullptr, nullptr}, {to.data(), nullptr, nullptr}, to.data(), nullptr, 1, 0, 0};
  CHECK(error_of(ErrorCode::invalid_argument, [&] { packed.launch(nullptr, args); }).field() == "w.scales (tiles)");
  CHECK(error_of(ErrorCode::invalid_argument, [&] { packed.launch(nullptr, PackArgs{}); }).field() == "args");
}

TEST_CASE("an engine says which problem to pack weights for", "[engine]") {
  Engine engine(options(""));
  // Nothing but the reference takes tiles on targets without their instructions.
  for (const char* text : {"gemm x=f16 w=q4_0 y=f32 m=2 n=128 k=192", "cast x=f32 y=q8_1 rows=4 cols=256"})
    CHECK(engine.packed(Problem::parse(text), arch("sm_80")) == Problem::parse(text));
  for (const char* text : {"gemm x=f16 w=q4_0 y=f32 m=2 n=100 k=192", "gemm x=f32 w=q4_0 y=f32 m=2 n=128 k=192",
                           "gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256 x_from=f32"})
    CHECK(engine.packed(Problem::parse(text), target()) == Problem::parse(text));
  for (const char* text : {"gemm x=f16 w=q4_0 y=f32 m=2 n=128 k=192", "gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256"}) {
    const Problem asked = Problem::parse(text);
    Gemm packed = *asked.as<Gemm>();
    packed.packing = Packing::tiles;
    bool taken = true;
    for (std::int64_t rows : kBuckets) {
      bool one = false;
      for (const Family* f : families("gemm"))
        one |= f->name() != "reference" && f->why_not(Problem(packed).with_rows(rows), target()).empty();
      taken &= one;
    }
    CHECK(taken);
    CHECK(engine.packed(asked, target()) == Problem(packed));
    CHECK(engine.packed(packed, target()) == Problem(packed));
  }
}

TEST_CASE("a packed problem is tuned on packed weights", "[engine]") {
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f32 m=2 n=64 k=256 pack=tiles");
  FakeGpu gpu;
  gpu.serve(problem, target());
  Engine engine(options(""));
  TunePolicy policy = quick_policy();
  policy.max_candidates = 2;
  const TuneReport r = engine.tune(problem, gpu.device(), policy);
  CHECK(r.choice.grade == Grade::exact);
  CHECK(r.key.find("pack=tiles") != std::string::npos);
}

TEST_CASE("a packed problem is prewarmed with its packing", "[engine]") {
  TempDir dir;
  FakeGpu gpu;
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f32 m=2 n=64 k=256 pack=tiles");
  const Gemm& g = *problem.as<Gemm>();
  Options o = options(dir / "c.db");
  {
    Engine engine(o);
    PrewarmPolicy policy;
    policy.top = 1;
    policy.every_bucket = false;
    const Arch* targets[] = {&target()};
    const PrewarmReport r = engine.prewarm(std::span(&problem, 1), targets, policy);
    CHECK(r.failed == 0);
    CHECK(r.compiled == 4);  // the gemm, its packing, the oracle, the clock
  }
  o.compile = false;
  Engine engine(o);
  CHECK_NOTHROW(engine.prepare(Pack{g.w, g.x, g.n, g.k, false}, gpu.device()));
}

TEST_CASE("a pack problem is chosen once, not once a bucket", "[engine]") {
  FakeGpu gpu;
  const Problem problem = Problem::parse("pack w=q4_0 x=f16 n=128 k=192");
  auto asked = std::make_shared<std::atomic<int>>(0);
  Options o = options("");
  o.log = [asked](LogLevel, std::string_view text) { *asked += mentions(std::string(text), "is ignored"); };
  Engine engine(o);
  StoredChoice stale;
  stale.problem = problem.text(), stale.candidate = {"tiles", {{"of_another_version", 1}}}, stale.microseconds = 5;
  REQUIRE(engine.store().put_choice(tuner::choice_key(gpu.device()), stale));
  CHECK(engine.prepare(problem, gpu.device()).candidate(1).text() == "tiles");
  CHECK(*asked == 1);
}
