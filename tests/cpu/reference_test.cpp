// SPDX-License-Identifier: Apache-2.0
// The CPU's reference of gemms.
#include <tilewright/family.h>

#include "cpu_test.h"
#include "operands.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("the CPU's reference computes what no kernel does") {
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* text :
       {"gemm x=f32 w=f32 y=f32 m=3 n=19 k=7", "gemm x=f16 w=q6_k y=bf16 m=2 n=5 k=256 act=gelu bias=f16",
        "gemm x=bf16 w=int8_row y=f32 m=4 n=33 k=100 c=f32 beta=0.5",
        "gemm x=f16 w=nvfp4 y=f16 m=2 n=17 k=64 global=div",
        "gemm x=e4m3_tensor w=e4m3_b128 y=f32 m=3 n=130 k=256 global=mul",
        "gemm x=q8_1 w=q4_0 y=int8 m=2 n=16 k=64 x_from=bf16 y_scale=0.05",
        "gemm x=q8_1 w=q4_0 y=f32 m=2 n=16 k=64 pack=panels act=silu",
        "gemm x=int8 w=int8 y=int32 m=3 n=19 k=77 bias=int32"}) {
    Operands o(text);
    INFO(text);
    const Family& reference = family("gemm", "cpu_reference");
    REQUIRE(reference.why_not(o.problem, host_arch()) == "");
    o.run(device, built_in(reference.source(o.problem, host_arch(), {"cpu_reference", {{"oracle", 0}}}), host_arch()));
    CHECK(o.wrong() == "");
  }
}
