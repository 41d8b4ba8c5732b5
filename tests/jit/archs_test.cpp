// SPDX-License-Identifier: Apache-2.0
// Every kernel family compiles to a cubin for every kind of target, without a GPU.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/device_observer.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/gptq.h>
#include <tilewright/kernel.h>

#include "jit_test.h"
#include "support/catch.h"

using namespace tilewright;

namespace {

// Places in a family's list of candidates. A compilation takes a quarter of a second and more, so a target compiles
// some only: sm_75, which has the fewest features, an end of every second problem's list, by turns; sm_120a of every
// fourth's; sm_90a the middle of every fourth's, and of its own families' lists an end or the middle; sm_80, sm_89 and
// sm_100a the middle of every eighth problem's; the rest, which have no features of their own, of every sixteenth. The
// reference, which asks a target for conversions alone, is compiled on one of twelve.
std::vector<std::size_t> places(const Arch& target, std::size_t number, std::size_t problem, std::size_t candidates,
                                std::string_view family) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), target.name) != names.end();
  };
  const std::size_t end = problem / 2 % 2 ? 0 : candidates - 1, middle = candidates / 2;
  if (family == "reference")
    return number % 12 == problem % 12 ? std::vector<std::size_t>{0} : std::vector<std::size_t>();
  if (is({"sm_90a"}) && family.starts_with("wgmma")) return {problem % 2 ? middle : end};
  const std::size_t period = is({"sm_75"})                       ? 2
                             : is({"sm_90a", "sm_120a"})         ? 4
                             : is({"sm_80", "sm_89", "sm_100a"}) ? 8
                                                                 : 16;
  if ((problem + number) % period != 0) return {};
  return {is({"sm_75", "sm_120a"}) ? end : middle};
}

// A module's variables: the knobs, plans made of them, tables that are read. Loading takes 5 us more for each.
// Constants that are not among TW_CONSTANTS count too, and there would be hundreds.
constexpr std::size_t kMostVariables = 5;

void compile_some(const Problem& problem, std::size_t which, std::size_t number) {
  const Arch& target = archs()[number];
  for (const Family* family : families(problem.op())) {
    const std::vector<Candidate> legal = family->candidates(problem, target);
    INFO(target.name << " " << problem.text() << " " << family->name());
    CHECK(legal.empty() == !family->why_not(problem, target).empty());
    if (legal.empty()) continue;
    for (const std::size_t i : places(target, number, which, legal.size(), family->name())) {
      INFO(legal[i].text());
      Binary binary;
      CHECK_NOTHROW(binary = compile(family->source(problem, target, legal[i]), target, test::real_compiler()));
      CHECK(!binary.image.empty());
      const std::vector<std::string> variables = test::device_variables(binary.image);
      CAPTURE(variables);
      CHECK(variables.size() <= kMostVariables);
    }
  }
}

}  // namespace

TEST_CASE("every family compiles for every target", "[archs]") {
  const std::vector<const char*> problems = {
      "gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=4096",
      "gemm x=q8_1 w=q4_k y=f32 m=4 n=4096 k=4096 x_from=bf16",
      "gemm x=q8_1 w=q4_k y=f16 m=64 n=4096 k=4096 bias=f32 act=silu",
      "gemm x=f16 w=f16 y=f16 m=512 n=4096 k=4096",
      "gemm x=f16 w=nvfp4 y=f16 m=16 n=4096 k=4096 global=mul",
      "gemm x=f16 w=q8_0 y=bf16 m=7 n=33 k=96",
      "gemm x=f32 w=nf4 y=f32 m=1 n=4096 k=4096",
      "gemm x=bf16 w=nf4 y=bf16 m=64 n=4096 k=4096",
      "gemm x=f16 w=nf4 y=f16 m=16 n=4096 k=4096",
      "gemm x=int8_row w=ternary_row y=bf16 m=1 n=4096 k=4096",
      "gemm x=bf16 w=ternary_row y=bf16 m=512 n=4096 k=4096 pack=tiles",
      "gemm x=f16 w=ternary_row y=f16 m=8 n=4096 k=4096 pack=tiles",
      "gemm x=int8_row w=sign_row y=f32 m=64 n=4096 k=4096",
      "gemm x=f16 w=signbit_row y=f16 m=1 n=4096 k=4096",
      "gemm x=sign_row w=sign_row y=bf16 m=64 n=4096 k=4096",
      "gemm x=signbit_row w=sign_row y=f32 m=2 n=4096 k=4112",
      "cast x=bf16 y=nf4 rows=64 cols=4096",
      "cast x=nf4 y=bf16 rows=64 cols=4096",
      "cast x=f16 y=ternary_row rows=64 cols=4096",
      "cast x=signbit_row y=f16 rows=64 cols=4096",
      "gemm x=f16 w=q4_0 y=f16 m=16 n=4096 k=4096 pack=tiles",
      "gemm x=bf16 w=nvfp4 y=f16 m=16 n=4096 k=4096 global=div pack=tiles",
      "gemm x=int8 w=int8 y=int32 m=64 n=4096 k=4096 bias=int32",
      "gemm x=int8 w=int8 y=int8 m=1 n=4096 k=4096",
      "gemm x=e4m3 w=e4m3 y=e4m3 m=64 n=4096 k=4096 c=bf16",
      "gemm x=e5m2 w=e4m3 y=bf16 m=512 n=4096 k=4096",
      "gemm x=e5m2 w=e5m2 y=f16 m=512 n=4096 k=4096 c=f16",
      "gemm x=q8_1 w=q4_0 y=f32 m=512 n=4096 k=4096 pack=tiles",
      "gemm x=q8_1 w=q8_0 y=f16 m=1 n=4096 k=4096 pack=tiles",
      "gemm x=q8_1 w=q5_1 y=f32 m=1 n=4096 k=4096 x_from=f16 pack=tiles",
      "gemm x=f16 w=q5_k y=f16 m=16 n=4096 k=4096 pack=tiles",
      "gemm x=e4m3_row w=nvfp4 y=bf16 m=512 n=4096 k=4096 global=mul pack=tiles",
      "gemm x=e4m3 w=nvfp4 y=f16 m=512 n=4096 k=4096 global=mul pack=tiles accum=fast",
      "gemm x=e4m3 w=mxfp4 y=f16 m=16 n=4096 k=4096 pack=tiles",
      "gemm x=f32 w=f32 y=f32 m=3 n=5 k=7",
      "gemm x=e4m3_g128 w=e4m3_b128 y=bf16 m=16 n=4096 k=4096",
      "gemm x=int8_row w=int8_row y=bf16 m=64 n=4096 k=4096",
      "gemm x=int8_asym_row w=int8_asym_row y=bf16 m=64 n=4096 k=4096",
      "cast x=f16 y=int8_asym_row rows=64 cols=4096",
      "gemm x=e4m3_row w=e4m3_row y=bf16 m=7 n=4096 k=4096",
      "gemm x=e4m3_g128 w=e4m3_g128 y=f32 m=64 n=4096 k=4096",
      "gemm x=int8_row w=int4_g128 y=bf16 m=64 n=4096 k=4096",
      "gemm x=bf16 w=bf16 y=bf16 m=128 n=4096 k=4096 groups=64",
      "gemm x=bf16 w=nvfp4 y=bf16 m=8 n=4096 k=4096 global=mul pack=tiles groups=200 group_layout=masked",
      "gemm x=int8_row w=nvfp4 y=bf16 m=512 n=4096 k=4096 global=mul",
      "gemm x=e4m3_row w=int4_row y=bf16 m=512 n=4096 k=4096",
      "gemm x=e4m3_row w=nvfp4 y=bf16 m=16 n=4096 k=4096 global=mul",
      "gemm x=nvfp4 w=nvfp4 y=bf16 m=512 n=4096 k=4096 global=mul",
      "gemm x=mxfp4 w=mxfp4 y=f16 m=16 n=4096 k=4096",
      "gemm x=mxfp8 w=mxfp8 y=bf16 m=512 n=4096 k=4096 bias=f32 act=silu",
      "cast x=f16 y=mxfp8 rows=64 cols=4096",
      "gemm x=f16 w=e4m3_row y=f16 m=64 n=4096 k=4096",
      "gemm x=f16 w=q2_k y=f16 m=64 n=4096 k=4096",
      "gemm x=q8_1 w=iq4_nl y=f32 m=1 n=4096 k=4096",
      "gemm x=q8_1 w=iq4_xs y=f16 m=64 n=4096 k=4096",
      "gemm x=q8_1 w=iq3_s y=f32 m=1 n=4096 k=4096",
      "gemm x=f16 w=iq2_xxs y=f16 m=64 n=4096 k=4096",
      "gemm x=q8_1 w=iq2_s y=f32 m=64 n=4096 k=4096",
      "gemm x=q8_1 w=iq1_m y=f32 m=1 n=4096 k=4096",
      "gemm x=bf16 w=tq1_0 y=bf16 m=8 n=4096 k=4096",
      "gemm x=bf16 w=iq4_nl y=bf16 m=512 n=4096 k=4096 pack=tiles",
      "gemm x=f16 w=iq4_xs y=f16 m=16 n=4096 k=4096 pack=tiles",
      "gemm x=bf16 w=tq2_0 y=bf16 m=16 n=4096 k=4096 pack=tiles",
      "gemm x=bf16 w=q1_0 y=bf16 m=16 n=4096 k=4096 pack=tiles",
      "gemm x=q8_1 w=q2_0 y=f32 m=1 n=4096 k=4096",
      "gemm x=f16 w=e4m3_row y=f16 m=512 n=4096 k=4096 pack=tiles",
      "gemm x=int4_row w=int4_row y=bf16 m=512 n=4096 k=4096 pack=tiles workspace=34603008",
      "gemm x=e4m3_g128 w=e4m3_b128 y=f16 m=512 n=4096 k=4096 bias=f16 act=gelu",
      "cast x=f16 y=e4m3_g128 rows=64 cols=4096",
      "cast x=f32 y=q8_1 rows=64 cols=4096",
      "cast x=f16 y=e4m3_row rows=64 cols=4096",
      "cast x=q4_0 y=f16 rows=64 cols=4096",
      "conv x=bf16 w=bf16 y=bf16 n=1 c=512 in=5x60x106 k=512 kernel=1 bias=bf16 residual=bf16",
      "conv x=e4m3 w=e4m3_row y=bf16 n=4 c=256 in=1x1 k=64 kernel=1 act=silu",
      "cast x=bf16 y=e4m3_row rows=64 cols=4096 rounding=stochastic",
      "cast x=f16 y=nvfp4 rows=64 cols=4096 rounding=stochastic",
      "cast x=f32 y=int4_row rows=64 cols=4096 rounding=stochastic",
      "fused_cast x=bf16 y=e4m3_row rows=64 cols=4096 residual=add norm=rms weight=bf16",
      "fused_cast x=f16 y=int8_asym_row rows=64 cols=4095 bias=f32 act=gelu",
      "fused_cast x=bf16 y=nvfp4 rows=64 cols=14336 act=silu gate=first",
      "fused_cast x=f32 y=mxfp8 rows=64 cols=4096 norm=rms act=gelu_tanh",
      "fused_cast x=f16 y=q8_1 rows=64 cols=50048 residual=add norm=rms weight=f32",
      "fused_cast x=bf16 y=int4_row rows=64 cols=4096 bias=bf16 act=relu",
      "fused_cast x=bf16 y=f16 rows=64 cols=4096 act=silu gate=first",
      "fused_cast x=f16 y=ternary_row rows=64 cols=4096 residual=add norm=rms weight=f16",
      "amax x=f16 rows=64 cols=4096",
      "transpose x=int8 rows=64 cols=4096",
      "transpose x=f16 rows=63 cols=4097",
      "amax x=f32 rows=64 cols=4096",
      "fake_quant x=bf16 rows=64 cols=4096",
      "fake_quant x=f16 rows=64 cols=4097 qmin=-8 qmax=7 scope=row grad=straight",
      "fake_quant x=f32 rows=64 cols=4096 grad=learned",
      "fake_quant x=bf16 rows=64 cols=4096 scope=row grad=learned",
      "unscale x=f32 pieces=1000",
      "unscale x=f16 pieces=1000",
      "update_scale",
      "fp4_fake_quant x=bf16 y=bf16 rows=64 cols=4096",
      "fp4_fake_quant x=f32 y=f16 rows=64 cols=4096 block=256",
      "fp4_fake_quant x=f16 y=f16 rows=64 cols=4104 block=128",
      "fp4_fake_quant x=f32 y=bf16 rows=64 cols=4095 block=64",
      "pack w=q5_k x=f16 n=4096 k=4096",
      "pack w=nvfp4 x=bf16 n=4096 k=4096 inverse=1",
      "pack w=int4_row x=int8_row n=4096 k=4096",
      "conv x=bf16 w=bf16 y=bf16 n=8 c=96 in=56x56 k=96 kernel=7 pad=3 groups=96 bias=f32",
      "conv x=f16 w=f16 y=f16 n=2 c=64 in=5x30x30 k=128 kernel=3 pad=1 groups=64 x_layout=ncdhw y_layout=ncdhw "
      "act=silu",
      "conv x=f16 w=f16 y=f16 n=1 c=96 in=6x48x83 k=96 kernel=3 pad=0x1x1 cache=2 x_layout=ncdhw y_layout=ncdhw "
      "w_layout=kctrs",
      "conv x=f16 w=f16 y=f16 n=1 c=6 in=31x30 k=64 kernel=3 pad=1 groups=2",
      "conv x=f16 w=f16 y=f16 n=1 c=64 in=31x30 k=64 kernel=3 pad=1 bias=f32",
      "conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=6x48x83 k=96 kernel=3 pad=0x1x1 cache=2 x_layout=ncdhw y_layout=ncdhw "
      "w_layout=kctrs workspace=33554432",
      "conv x=e4m3 w=e4m3_row y=bf16 n=1 c=192 in=6x48x83 k=192 kernel=3 pad=1 residual=bf16 accum=fast",
      "conv x=f32 w=f32 y=f32 n=1 c=40 in=31x30 k=64 kernel=3 stride=2 pad=1 accum=fast workspace=33554432",
      "conv x=bf16 w=int4_g128 y=bf16 n=1 c=384 in=6x48x83 k=384 kernel=3 pad=0x1x1 workspace=33554432",
      "conv x=f16 w=nvfp4 y=f16 n=1 c=48 in=31x30 k=64 kernel=3 x_layout=ncdhw global=mul workspace=33554432",
      "conv x=e4m3 w=int4_row y=bf16 n=1 c=192 in=31x30 k=192 kernel=3 pad=1 accum=fast workspace=33554432",
      "conv x=bf16 w=e5m2 y=bf16 n=1 c=36 in=31x30 k=64 kernel=3 pad=1 w_layout=kctrs workspace=33554432",
      "conv x=bf16 w=int4_g128 y=bf16 n=2 c=640 in=16x16 k=640 kernel=3 pad=1 pack=tiles",
      "conv x=e4m3 w=int4_row y=bf16 n=1 c=256 in=31x30 k=192 kernel=3 pad=1 x_layout=ncdhw pack=tiles "
      "workspace=33554432",
      "conv x=f32 w=f32 y=f32 n=1 c=8 in=31x30 k=64 kernel=3 pad=1",
      "conv x=f16 w=f16 y=f16 n=1 c=33 in=9x31x30 k=64 kernel=3 pad=1 x_layout=ncdhw w_layout=kctrs workspace=33554432 "
      "quant_act=e2m1/128",
      "conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/32 order=trsc",
      "conv x=f32 w=f32 y=f32 n=1 c=132 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/256 order=trsc",
      "conv x=bf16 w=int4_g32 y=bf16 n=1 c=96 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/16",
      "conv x=f16 w=nvfp4 y=f16 n=1 c=64 in=31x30 k=64 kernel=3 global=mul pack=tiles workspace=33554432 "
      "quant_act=e2m1/64 order=trsc"};
  for (std::size_t number = 0; number < archs().size(); ++number)
    for (std::size_t i = 0; i < problems.size(); ++i) compile_some(Problem::parse(problems[i]), i, number);
}

TEST_CASE("kernels of GPTQ and of observers compile for every target and spill nothing", "[archs]") {
  const char* formats[] = {"int4_row", "int4_g128", "uint4_g64"};
  const char* floats[] = {"f32", "f16", "bf16"};
  for (std::size_t number = 0; number < archs().size(); ++number) {
    const Arch& target = archs()[number];
    std::vector<Task> tasks = gptq_tasks(Format::parse(formats[number % 3]));
    tasks.push_back(observe_task(Format::parse(floats[number % 3])));
    for (const Task& task : tasks) {
      INFO(target.name << " " << task.key);
      const Binary binary = compile(task.source(task.candidates[0]), target, test::real_compiler());
      CHECK(binary.resources.spill_bytes == 0);
      CHECK(test::device_variables(binary.image).size() <= kMostVariables);
    }
  }
  CHECK_THROWS_AS(gptq_tasks(Format::parse("q4_0")), Error);
}

// Tiles with as many sums as fit, which a change far from them may push over: one that spills is refused, and what is
// chosen in its place is up to 14 % slower. The last one is small: it takes its tiles from a queue, for which no
// problem of the test above has rows enough.
TEST_CASE("Hopper's largest tiles neither spill nor serialize their matrix instructions", "[archs]") {
  const struct {
    const char *problem, *candidate;
  } tiles[] = {
      {"gemm x=e4m3_row w=e4m3_row y=bf16 m=1024 n=10240 k=8192 accum=fast",
       "wgmma block_m=160 strips=2 warpgroups_n=2 warpgroups_k=1 panels=1 stages=4 cluster=1 split_k=1 warp_mma=0 "
       "swapped=1"},
      {"gemm x=int8_row w=int8_row y=bf16 m=1024 n=3584 k=18944",
       "wgmma block_m=224 strips=1 warpgroups_n=2 warpgroups_k=1 panels=1 stages=3 cluster=1 split_k=1 warp_mma=0 "
       "swapped=1"},
      {"gemm x=int8_row w=int8_row y=bf16 m=1024 n=3584 k=18944",
       "wgmma block_m=256 strips=1 warpgroups_n=2 warpgroups_k=1 panels=1 stages=3 cluster=1 split_k=1 warp_mma=0 "
       "swapped=1"},
      {"gemm x=bf16 w=bf16 y=bf16 m=1024 n=6144 k=4096",
       "wgmma block_m=192 strips=2 warpgroups_n=2 warpgroups_k=1 panels=1 stages=3 cluster=2 split_k=1 warp_mma=0 "
       "swapped=1"},
      {"gemm x=e4m3_row w=int4_row y=bf16 m=1024 n=6144 k=4096 accum=fast pack=tiles",
       "wgmma block_m=128 strips=1 warpgroups_n=3 warpgroups_k=1 panels=2 stages=3 cluster=1 split_k=1 warp_mma=0"},
      {"gemm x=f16 w=q4_k y=f16 m=1024 n=5120 k=13824 pack=tiles",
       "wgmma block_m=256 strips=1 warpgroups_n=2 warpgroups_k=1 panels=1 stages=5 cluster=2 split_k=1 warp_mma=0"},
      {"gemm x=e4m3_row w=int4_g128 y=bf16 m=4096 n=5120 k=13824 pack=tiles",
       "wgmma block_m=160 strips=1 warpgroups_n=2 warpgroups_k=1 panels=2 stages=3 cluster=2 split_k=1 warp_mma=0"},
      {"gemm x=e4m3_row w=int4_g128 y=bf16 m=1024 n=5120 k=13824 pack=tiles",
       "wgmma block_m=176 strips=1 warpgroups_n=2 warpgroups_k=1 panels=2 stages=3 cluster=2 split_k=1 warp_mma=0 "
       "schedule=1"},
      {"gemm x=e4m3_row w=int4_g128 y=bf16 m=4096 n=3584 k=18944 pack=tiles workspace=33554432",
       "wgmma block_m=176 strips=1 warpgroups_n=2 warpgroups_k=1 panels=2 stages=3 cluster=2 split_k=1 warp_mma=0 "
       "schedule=2"},
      {"gemm x=int8_row w=int4_g128 y=bf16 m=4096 n=6144 k=4096 pack=tiles workspace=33554432",
       "wgmma block_m=160 strips=1 warpgroups_n=2 warpgroups_k=1 panels=2 stages=3 cluster=2 split_k=1 warp_mma=0 "
       "schedule=2"},
      {"gemm x=f16 w=q4_k y=f16 m=64 n=8192 k=28672 pack=tiles workspace=33554432",
       "wgmma block_m=64 strips=2 warpgroups_n=2 warpgroups_k=1 panels=4 stages=3 cluster=1 split_k=1 warp_mma=0 "
       "schedule=2"},
      {"gemm x=e4m3_row w=nvfp4 y=bf16 m=1024 n=8192 k=8192 global=mul pack=tiles",
       "wgmma block_m=256 strips=1 warpgroups_n=2 warpgroups_k=1 panels=1 stages=4 cluster=1 split_k=1 warp_mma=0"},
      {"gemm x=e4m3_row w=nvfp4 y=bf16 m=1024 n=8192 k=8192 global=mul accum=fast pack=tiles workspace=33554432",
       "wgmma block_m=256 strips=1 warpgroups_n=2 warpgroups_k=1 panels=1 stages=3 cluster=2 split_k=1 warp_mma=0"},
      {"gemm x=e4m3_row w=nvfp4 y=bf16 m=1024 n=8192 k=8192 global=mul accum=fast pack=tiles workspace=33554432",
       "wgmma block_m=256 strips=1 warpgroups_n=2 warpgroups_k=1 panels=1 stages=5 cluster=2 split_k=1 warp_mma=0 "
       "schedule=2"},
      {"gemm x=e4m3_row w=q4_k y=bf16 m=1024 n=8192 k=8192 pack=tiles",
       "wgmma block_m=128 strips=2 warpgroups_n=2 warpgroups_k=1 panels=2 stages=3 cluster=1 split_k=1 warp_mma=0"},
      {"gemm x=bf16 w=mxfp4 y=bf16 m=16 n=57344 k=8192 pack=tiles workspace=33554432",
       "wgmma block_m=16 strips=1 warpgroups_n=1 warpgroups_k=1 panels=8 stages=2 cluster=1 split_k=1 warp_mma=1 "
       "schedule=3"},
  };
  const Arch& hopper = arch("sm_90a");
  for (const auto& tile : tiles) {
    INFO(tile.problem << " by " << tile.candidate);
    const Source source =
        family("gemm", "wgmma").source(Problem::parse(tile.problem), hopper, Candidate::parse(tile.candidate));
    const Binary binary = compile(source, hopper, test::real_compiler());
    CHECK(binary.resources.spill_bytes == 0);
    CHECK_FALSE(binary.resources.serialized);
  }
}
