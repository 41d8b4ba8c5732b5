// SPDX-License-Identifier: Apache-2.0
// Convolutions on the CPU: every candidate against the oracle on the host, with one thread and with three.
#include <tilewright/conv.h>
#include <tilewright/family.h>

#include <fmt/format.h>

#include <random>

#include "cpu_test.h"
#include "operands.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// The problem's output by a family's candidate; the test fails where it is wrong or depends on the threads.
std::vector<std::byte> check(Operands& o, const Binary& binary) {
  const std::vector<std::byte> one = o.run(Device::open_cpu({.threads = 1, .parallel_for = {}}), binary);
  CHECK(o.wrong() == "");
  CHECK(o.run(Device::open_cpu({.threads = 3, .parallel_for = {}}), binary) == one);
  return one;
}

void check_reference(const std::string& text) {
  INFO(text);
  Operands o(text);
  const Family& reference = family("conv", "cpu_reference");
  REQUIRE(reference.why_not(o.problem, host_arch()) == "");
  check(o, built_in(reference.source(o.problem, host_arch(), {"cpu_reference", {{"oracle", 0}}}), host_arch()));
}

}  // namespace

TEST_CASE("the CPU's reference computes whatever a conv may be") {
  for (const char* text :
       {"conv x=bf16 w=bf16 y=bf16 n=1 c=16 in=4x9x11 k=24 kernel=3 pad=0x1x1",
        "conv x=f32 w=f32 y=f32 n=2 c=6 in=9x7 k=10 kernel=3 stride=2 pad=1 groups=2 bias=f32 act=gelu x_layout=ncdhw "
        "y_layout=ncdhw w_layout=kctrs",
        "conv x=f32 w=f16 y=f32 n=1 c=3 in=40 k=70 kernel=5 dilation=2 pad=3:1 pad_mode=reflect",
        "conv x=f16 w=nvfp4 y=f16 n=1 c=16 in=3x5x5 k=8 kernel=2 cache=1 global=div pad=0:0x1x1 pad_mode=replicate "
        "residual=f16 beta=0.5",
        "conv x=bf16 w=bf16 y=f32 n=2 c=5 in=6x4x4 k=7 kernel=3x1x2 cache=2 x_layout=ncdhw residual=bf16 "
        "y_layout=ncdhw",
        "conv x=sign_row w=signbit_row y=f32 n=1 c=16 in=9 k=8 kernel=3 pad=1",
        "conv x=bf16 w=bf16 y=bf16 n=1 c=20 in=9x9 k=8 kernel=3 pad=1 quant_act=e2m1/16",
        "conv x=f32 w=f32 y=f32 n=1 c=12 in=7x5 k=9 groups=3 kernel=3 pad=1 quant_act=e2m1/32 w_layout=kctrs",
        "conv x=bf16 w=q4_0 y=int8 y_scale=0.2 n=1 c=32 in=9x9 k=8 kernel=3 pad=1 pad_mode=reflect dilation=2 "
        "quant_act=e2m1/16 order=trsc",
        "conv x=e4m3_tensor w=e4m3_row y=e4m3 n=1 c=24 in=17 k=24 groups=24 kernel=5 global=mul",
        "conv x=e4m3_tensor w=e5m2_tensor y=e5m2 n=1 c=4 in=7 k=5 kernel=3 global=div",
        "conv x=int8 w=int8 y=f32 n=3 c=11 in=7x6 k=130 kernel=2 accum=full alpha=0.25",
        "conv x=int8_tensor w=int4_row y=bf16 n=1 c=8 in=20 k=4 kernel=1 stride=3 global=mul"})
    check_reference(text);
}

TEST_CASE("what no CPU computes of a conv is refused with a reason") {
  const Family& reference = family("conv", "cpu_reference");
  const Problem tiles = Problem::parse("conv x=bf16 w=int4_g64 y=bf16 n=1 c=64 in=8x8 k=64 kernel=1 pack=tiles");
  CHECK(reference.why_not(tiles, host_arch()).find("tiles") != std::string::npos);
  CHECK(reference.why_not(Problem::parse("conv x=f32 w=f32 y=f32 n=1 c=4 in=8 k=4 kernel=1"), arch("sm_90a")) ==
        "for CPUs");
  // Weights stay as they are.
  CHECK(!tiles.operation().packed(Problem::parse("conv x=bf16 w=int4_g64 y=bf16 n=1 c=64 in=8x8 k=64 kernel=1"),
                                  host_arch()));
}
