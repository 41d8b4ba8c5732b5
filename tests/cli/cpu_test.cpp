// SPDX-License-Identifier: Apache-2.0
// The tool on this machine's CPU.
#include <tilewright/arch.h>
#include <tilewright/engine.h>
#include <tilewright/host_archs.h>

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
  const std::string folder = scratch() / "emitted_ir";
  const Ran files = tool(std::string("emit --arch x86-64-v4+vnni ") + kPacked + "--dir '" + folder + "'");
  CHECK(files.code == 0);
  CHECK(slurp(folder + "/kernel.ll") == text.out);
  CHECK_FALSE(fs::exists(folder + "/kernel.cu"));
  CHECK(files.out.find("llc -O2 -relocation-model=pic -filetype=obj -mtriple=x86_64-unknown-linux-gnu -mattr=+") !=
        std::string::npos);
  CHECK(files.out.find(",+avx512vnni " + folder + "/kernel.ll -o " + folder + "/kernel.o") != std::string::npos);
  const Json emit = tool(std::string("emit --json --arch x86-64-v4+vnni ") + kPacked).json();
  CHECK(emit["triple"] == "x86_64-unknown-linux-gnu");
  CHECK(emit["features"] == tilewright::arch("x86-64-v4+vnni").cpu->features);
  refused("emit --arch cpu 'cast x=f32 y=q8_0 rows=4 cols=64'", 1, "cast/cpu_cast computes it, which is built into");
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

TEST_CASE("cli: without libLLVM run names the kernel that ran, not the one that ranks first") {
  using namespace tilewright;
  if (host_arch().cpu->vector_bytes == 0) return;
  Engine engine{Options()};
  for (const int m : {1, 40, 300}) {
    const std::string text = "gemm x=q8_1 w=q4_0 y=f32 m=" + std::to_string(m) + " n=64 k=256 pack=panels x_from=f32";
    const Ran ran =
        tool("run --device cpu --json '" + text + "' " + cache_flag("named.db"), "TILEWRIGHT_LLVM=/nonexistent");
    REQUIRE(ran.code == 0);
    const std::string named = ran.json()["kernel"].get<std::string>();
    const Candidate used = Candidate::parse(named.substr(0, named.find(" (")));
    CHECK(engine.task(Problem::parse(text), host_arch()).source(used).host != nullptr);
  }
}

TEST_CASE("cli: without a GPU run and tune take the CPU, pack the weights, and say so") {
  if (tilewright::host_arch().cpu->vector_bytes == 0) return;
  const std::string plain = "'gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=2 n=64 k=128' ", cache = cache_flag("default.db");
  const char* const note = "tilewright: no GPU was found; this machine's CPU is used\n";
  const Ran tuned = tool("tune --max 2 --json " + plain + cache);
  INFO(tuned.err);
  CHECK(tuned.code == 0);
  CHECK(tuned.err.find(note) != std::string::npos);
  const Json report = tuned.json()["reports"][0];
  CHECK(report["problem"].get<std::string>().find("pack=panels") != std::string::npos);
  CHECK(report["warning"].is_null());
  for (const char* device : {"", "--device cpu "}) {
    const Ran ran = tool("run --json " + plain + device + cache, "TILEWRIGHT_LLVM=/nonexistent");
    INFO(ran.err);
    CHECK((ran.err.find(note) != std::string::npos) == !*device);
    const Json run = ran.json();
    CHECK(run["executed_on"] == "cpu");
    CHECK(run["problem"].get<std::string>().find("pack=panels") != std::string::npos);
    CHECK(run["verified"] == true);
  }
  // What the tuner compiled is there; other numbers of rows take what is built in.
  const Ran again = tool("run --tune " + plain + cache);
  CHECK(again.code == 0);
  CHECK(tool("run " + plain + cache).out.find("0 compiled") != std::string::npos);
  CHECK(tool("cache explain --arch cpu " + std::string(kPacked) + cache).out.find("bucket") != std::string::npos);
}

TEST_CASE("cli: a convolution's weights are packed, too, and what is stored of it is sound") {
  if (tilewright::host_arch().cpu->vector_bytes == 0) return;
  const std::string plain = "'conv x=f16 w=bf16 y=f16 n=1 c=5 in=7x7 k=32 kernel=3 pad=1' ",
                    cache = cache_flag("conv.db");
  const Json report = tool("tune --device cpu --max 2 --json " + plain + cache).json()["reports"][0];
  CHECK(report["problem"].get<std::string>().find("pack=panels") != std::string::npos);
  CHECK(report["warning"].is_null());
  const Json run = tool("run --device cpu --json " + plain + cache).json();
  CHECK(run["problem"].get<std::string>().find("pack=panels") != std::string::npos);
  CHECK(run["verified"] == true);
  CHECK(tool("cache verify " + cache).code == 0);
}

TEST_CASE("cli: every target of this CPU has kernels and choices of its own") {
  const std::string cache = cache_flag("lower.db");
  for (const tilewright::Arch* arch : tilewright::host_archs()) {
    if (arch->cpu->vector_bytes == 0) continue;  // it has the reference alone
    const std::string target = arch->name;
    const std::string device = "--device cpu:" + target + " ";
    const Json tuned = tool("tune --max 2 --json " + device + kPacked + cache).json();
    CHECK(tuned["reports"].size() == 1);
    const Json run = tool("run --json " + device + kPacked + cache).json();
    CHECK(run["executed_on"] == "cpu");
    CHECK(run["arch"] == target);
    CHECK(run["verified"] == true);
    const std::string explained = tool("cache explain -v --arch " + target + " " + kPacked + cache).out;
    const bool noisy = tuned["reports"][0]["noisy"];  // what varied too much is not stored
    CHECK((explained.find("grade: exact") != std::string::npos) == !noisy);
    CHECK(explained.find("  target=" + target) != std::string::npos);
  }
}

TEST_CASE("cli: what this CPU has no kernels for is computed by the reference, which says why") {
  for (const char* problem : {"'fake_quant x=f32 rows=4 cols=64' ", "'gemm x=q8_1 w=q4_0 y=f32 m=2 n=24 k=64' "}) {
    const Ran ran = tool(std::string("run ") + problem + cache_flag("none.db"));
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    CHECK(ran.out.find("device   none: no GPU was found, and ") != std::string::npos);
    CHECK(ran.out.find(", so this is the plain CPU reference\n") != std::string::npos);
    CHECK(ran.out.find("result   verified") != std::string::npos);
  }
}

TEST_CASE("cli: doctor knows the CPU and its compiler") {
  const Json healthy = tool("doctor --json" + cache_flag("doctor.db")).json();
  const Json cpu = finding(healthy, "cpu");
  CHECK(cpu["arch"] == tilewright::host_arch().name);
  CHECK(cpu["threads"] >= 1);
  CHECK(cpu["kernels"] == (tilewright::host_arch().cpu->vector_bytes > 0));
  const Json llvm = finding(healthy, "libLLVM");
  CHECK((llvm["state"] == "ok" || llvm["fix"].get<std::string>().find("libllvm19") != std::string::npos));
  const Ran named = tool("doctor --json" + cache_flag("doctor.db"), "TILEWRIGHT_LLVM=/nonexistent");
  CHECK(named.code == 4);
  CHECK(finding(named.json(), "libLLVM")["state"] == "problem");
}

TEST_CASE("cli: a damaged object is found by verify, and compiled again") {
  if (tool("doctor --json").json().dump().find("\"LLVM ") == std::string::npos) return;  // nothing compiles here
  const std::string cache = cache_flag("object.db"), file = scratch() / "object.db";
  REQUIRE(tool(std::string("prewarm --top 1 --no-buckets --arch cpu ") + kPacked + cache).code == 0);
  std::string bytes = slurp(file);
  std::size_t objects = 0;
  for (std::size_t at = 0; (at = bytes.find("tilewright_kernel_first", at)) != bytes.npos; ++at, ++objects) {
    bytes[at] = 'T';  // a name in an object's table of symbols
  }
  REQUIRE(objects > 0);
  std::ofstream(file, std::ios::binary) << bytes;
  CHECK(tool("cache verify" + cache).code == 3);
  CHECK(tool("cache verify --repair" + cache).code == 0);
  CHECK(tool(std::string("run --json --device cpu ") + kPacked + cache).json()["verified"] == true);
}

TEST_CASE("cli: what is not built in is not held against a compiler that comes later") {
  if (tool("doctor --json").json().dump().find("\"LLVM ") == std::string::npos) return;  // none comes
  const std::string cache = cache_flag("later.db");
  const Ran before = tool(std::string("run --tune ") + kPacked + cache, "TILEWRIGHT_LLVM=/nonexistent");
  CHECK(before.err.find("passed over") == std::string::npos);
  CHECK(before.out.find(" 0 compiled, 0 from the cache") != std::string::npos);
  CHECK(tool("cache ls" + cache).out.find("not_compiled") == std::string::npos);
  const Json after = tool(std::string("tune --retune --max 6 --json ") + kPacked + cache).json();
  CHECK(after["reports"][0]["compiled"] > 0);
  for (const Json& o : after["reports"][0]["outcomes"]) CHECK(o["kind"] == "measured");
}

TEST_CASE("cli: plot draws what a CPU was tuned for") {
  const std::string cache = " --cache '" + (scratch() / "plot.db") + "' ";
  const std::string problem = "'gemm x=q8_1 w=q4_0 y=f32 m=1 n=256 k=256'" + cache;
  refused("plot --device cpu " + problem, 1, "tune");
  REQUIRE(tool("tune --device cpu --all-m --budget 2 --binaries 1 " + problem).code == 0);
  const Json plot = tool("plot --json --device cpu " + problem).json();
  CHECK_FALSE(plot["ranges"].empty());
  CHECK(plot["tbps"] > 0);
}

TEST_CASE("cli: devices and targets that there are not are refused by name") {
  refused(std::string("run --device gpu ") + kPacked, 1,
          "--device must be cpu, cpu:TARGET, or the ordinal of a GPU (got gpu)");
  refused(std::string("run --device cpu: ") + kPacked, 1, "--device must be cpu, cpu:TARGET");
  for (const char* command : {"run", "tune"})
    refused(std::string(command) + " --device cpu:x86-64-v9 " + kPacked, 1,
            "target must be one of those that this machine's CPU runs (got x86-64-v9): " +
                std::string(tilewright::cpu_archs().front().name));
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
