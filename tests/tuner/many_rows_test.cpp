// SPDX-License-Identifier: Apache-2.0
// Launches of more rows than any bucket names: no family puts rows or columns on an axis of the grid that ends early.
#include <set>
#include <utility>

#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

alignas(16) std::byte somewhere[16];

GemmArgs arguments(std::int64_t m) {
  GemmArgs args;
  args.x.data = args.x.scales = args.w.data = args.w.scales = args.y = somewhere;
  args.m = m;
  return args;
}

struct Grid {
  std::uint64_t x, y, z;
};

}  // namespace

TEST_CASE("a launch has as many rows as a caller likes", "[engine]") {
  const FakeDevice ampere{"NVIDIA A100", 8, 0, 108, 163 << 10, 65536, 80ll << 30, 40 << 20};
  FakeGpu gpu;
  fake_cuda_set_device(1, &ampere);
  Engine engine(options(""));
  std::vector<Grid> grids;
  gpu.on_launch = [&](const FakeLaunch& l) { grids.push_back({l.grid[0], l.grid[1], l.grid[2]}); };
  for (const int device : {0, 1})
    for (const auto& [text, family] : {std::pair{"gemm x=f32 w=q4_0 y=f32 m=600000 n=64 k=256", "gemv"},
                                       std::pair{"gemm x=q4_k w=q8_1 y=f32 m=300000 n=64 k=256", "reference"}}) {
      const Problem problem = Problem::parse(text);
      INFO(text << " on " << gpu.device(device).name());
      const Kernel kernel = engine.prepare(problem, gpu.device(device));
      CHECK(kernel.candidate(problem.rows()).family == family);
      for (const std::int64_t m : {problem.rows(), std::int64_t{1}, std::int64_t{65536}, std::int64_t{2000001}}) {
        grids.clear();
        kernel.launch(nullptr, arguments(m));
        REQUIRE(grids.size() == 1);
        CHECK(grids[0].x == kernel.plan(m).x.blocks(m, 64));
        CHECK(grids[0].x >= static_cast<std::uint64_t>((m + 7) / 8));
        CHECK(grids[0].y == 1);
        CHECK(grids[0].z == 1);
      }
    }
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("a launch of more blocks than a grid has is refused by name", "[engine]") {
  FakeGpu gpu;
  Engine engine(options(""));
  const Kernel kernel = engine.prepare(Problem::parse("gemm x=q4_k w=q8_1 y=f32 m=1 n=8192 k=256"), gpu.device());
  const Error e = error_of(ErrorCode::too_large, [&] { kernel.launch(nullptr, arguments(2147483647)); });
  CHECK(e.field() == "grid.x");
  CHECK(e.value() == "for 2147483647 x 8192");
  CHECK(mentions(e.what(), "at most 2147483647 blocks"));
  CHECK(gpu.launches == 0);
}

TEST_CASE("every family of every operation numbers its blocks along x alone", "[engine]") {
  const Engine engine(options(""));
  std::set<std::string> seen, all;
  for (const Operation* o : operations())
    for (const Family* f : o->families()) all.insert(std::string(o->name()) + "/" + std::string(f->name()));
  for (const char* text : {"gemm x=f16 w=q4_0 y=f32 m=3 n=4096 k=4096",
                           "gemm x=f32 w=q4_0 y=f32 m=600000 n=64 k=256",
                           "gemm x=f16 w=f16 y=f16 m=512 n=4096 k=4096",
                           "gemm x=f16 w=q4_0 y=f16 m=512 n=4096 k=4096 pack=tiles",
                           "gemm x=q8_1 w=q4_0 y=f32 m=512 n=4096 k=4096 pack=tiles",
                           "gemm x=nvfp4 w=nvfp4 y=bf16 m=300 n=128 k=512 global=mul",
                           "cast x=f32 y=q8_1 rows=600000 cols=64",
                           "cast x=q4_k y=f16 rows=600000 cols=256",
                           "cast x=f32 y=int8_row rows=600000 cols=64",
                           "fused_cast x=bf16 y=e4m3_row rows=600000 cols=64 norm=rms",
                           "fused_cast x=bf16 y=nvfp4 rows=600000 cols=14336 act=silu gate=first",
                           "amax x=bf16 rows=600000 cols=4096",
                           "unscale x=bf16 pieces=6000000",
                           "update_scale",
                           "transpose x=int8 rows=8000000 cols=64",
                           "fake_quant x=bf16 rows=600000 cols=4096 scope=row grad=learned",
                           "fake_quant x=bf16 rows=600000 cols=4096",
                           "fp4_fake_quant x=bf16 y=bf16 rows=600000 cols=4096",
                           "fp4_fake_quant x=f32 y=f32 rows=600000 cols=81",
                           "conv x=f16 w=f16 y=f16 n=1 c=64 in=6x900x900 k=64 kernel=3 groups=64",
                           "pack w=q4_0 x=f16 n=64 k=4096",
                           "conv x=f16 w=f16 y=f16 n=1 c=16 in=6x900x900 k=8 kernel=3",
                           "conv x=f16 w=f16 y=f16 n=1 c=16 in=6x900x900 k=3 kernel=3",
                           "conv x=f16 w=f16 y=f16 n=1 c=64 in=6x900x900 k=64 kernel=1x3x3 groups=64",
                           "conv x=f16 w=f16 y=f16 n=1 c=64 in=6x900x900 k=8 kernel=1",
                           "conv x=f32 w=f32 y=f32 n=1 c=64 in=900x900 k=8 kernel=1"})
    for (const Arch& target : archs()) {
      const Problem problem = Problem::parse(text);
      for (const Planned& p : engine.plan(problem, target)) {
        seen.insert(std::string(problem.op()) + "/" + p.candidate.family);
        if (p.plan.y == GridAxis{} && p.plan.z == GridAxis{}) continue;
        FAIL_CHECK(text << " on " << target.name << ": " << p.candidate.text());
      }
    }
  CHECK(seen == all);
}
