// SPDX-License-Identifier: Apache-2.0
// The tool on this machine's CPU.
#include <tilewright/arch.h>

#include "tool.h"

using namespace cli_tool;

namespace {

const char* const kPacked = "'gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=2 n=64 k=128 pack=panels' ";

}  // namespace

TEST_CASE(
    "cli: a problem is planned, emitted, prewarmed and run for the CPU, and the second process compiles nothing") {
  const std::string target = tilewright::host_arch().name, cache = cache_flag("cpu.db");
  const Json plan = tool(std::string("plan --json --arch cpu ") + kPacked).json();
  CHECK(plan["arch"] == target);
  CHECK(tool(std::string("plan --json --arch native ") + kPacked).json()["arch"] == target);
  const Ran text = tool(std::string("emit --arch x86-64-v4+vnni ") + kPacked);
  CHECK(text.code == 0);
  CHECK(text.out.find("define void @tilewright_kernel(ptr %args") != std::string::npos);
  CHECK(text.out.find("@llvm.x86.avx512.vpdpbusd.512") != std::string::npos);
  const Ran prewarm = tool(std::string("prewarm --arch cpu ") + kPacked + cache);
  INFO(prewarm.err);
  CHECK(prewarm.code == 0);
  for (const char* variables : {"", "TILEWRIGHT_LLVM=/nonexistent "}) {
    const Ran ran = tool(std::string("run --json --device cpu ") + kPacked + cache, variables);
    INFO(ran.err);
    CHECK(ran.code == 0);
    const Json run = ran.json();
    CHECK(run["executed_on"] == "cpu");
    CHECK(run["arch"] == target);
    CHECK(run["compiled"] == 0);
    CHECK(run["built_in"] == 0);
    CHECK(run["verified"] == true);
  }
  CHECK(tool("cache verify" + cache).code == 0);
}

TEST_CASE("cli: without libLLVM the tool says that built-in kernels compute") {
  if (tilewright::host_arch().cpu->vector_bytes == 0) return;
  const Ran ran =
      tool(std::string("run --device cpu ") + kPacked + cache_flag("built_in.db"), "TILEWRIGHT_LLVM=/nonexistent");
  CHECK(ran.code == 0);
  CHECK(ran.out.find("built in: there is no libLLVM") != std::string::npos);
  CHECK(ran.out.find("result   verified") != std::string::npos);
}

TEST_CASE("cli: devices and targets that there are not are refused by name") {
  refused(std::string("run --device gpu ") + kPacked, 1, "--device = gpu: cpu, or the ordinal of a GPU");
  refused(std::string("tune --device -1 ") + kPacked, 1, "--device");
  refused(std::string("plan --arch x86-64-v9 ") + kPacked, 1, "x86-64-v4+vnni");
  refused(std::string("plan --arch sm_90a ") + kPacked, 1, "panels");
  refused("run --device cpu 'amax x=f32 rows=4 cols=64'" + cache_flag("none.db"), 1, "no kernels for CPUs yet");
}

TEST_CASE("cli: casts and floats by floats run on the CPU") {
  for (const char* problem : {"'cast x=f32 y=q8_0 rows=4 cols=64'", "'gemm x=f16 w=f16 y=f16 m=3 n=32 k=40 act=gelu'",
                              "'gemm x=f32 w=f32 y=f32 m=3 n=32 k=40 pack=panels c=f32'"}) {
    const Ran ran = tool(std::string("run --device cpu ") + problem + cache_flag("floats.db"));
    CHECK(ran.code == 0);
    CHECK(ran.out.find("result   verified") != std::string::npos);
  }
}
