// SPDX-License-Identifier: Apache-2.0
#include "tool.h"

#include <iterator>
#include <utility>

using namespace cli_tool;

namespace {

constexpr const char* kTinyModel = "--model examples/models/minilm-l6-v2-tiny.gguf ";

}  // namespace

TEST_CASE("cli: arguments that are wrong are named and give 1") {
  refused("", 1, "subcommand");
  refused("nothing", 1, "command must be one of");
  refused("plan", 1, "problem");
  refused("plan gemm x=q9 w=q4_0 y=f32 m=1 n=64 k=64 --arch sm_90a", 1, "q9");
  refused(std::string("plan ") + kGemm + " --arch sm_1", 1, "sm_1");
  refused(std::string("plan ") + kGemm + " --arch sm_90a --top -1", 1, "--top");
  refused(std::string("emit ") + kGemm + " --arch sm_90a --candidate 'mma bm=3'", 1, "--candidate");
  refused("prewarm --arch sm_80 --workload /nonexistent", 1, "/nonexistent");
  refused("prewarm --arch sm_80", 1, "workload");
  refused("tune", 1, "PROBLEM");
  refused("plot", 1, "problem");
  refused("plot 'pack w=q4_0 x=f16 n=64 k=256'", 1, "number of rows varies");
  refused(std::string("plot ") + kGemm + " --output ''", 1, "--output");
  refused(std::string("plot --device 0 ") + kGemm, 4, "plot needs an NVIDIA GPU");
  refused("plann", 1, "did you mean plan?");
  refused("cache", 1, "subcommand");
  refused("cache ls --cache /nonexistent/cache.db", 1, "/nonexistent/cache.db");
  refused("cache import /nonexistent/a.db" + cache_flag("import.db"), 1, "/nonexistent/a.db");
  refused("formats --nonsense", 1, "nonsense");
}

TEST_CASE("cli: help and version") {
  const Ran help = tool("--help");
  CHECK(help.code == 0);
  for (const char* part : {"formats", "archs", "families", "plan", "emit", "prewarm", "tune", "plot", "run", "quantize",
                           "cache", "Exit codes"})
    CHECK(help.out.find(part) != std::string::npos);
  const Ran run = tool("run --help");
  CHECK(run.code == 0);
  CHECK(help.out.find("fused_cast x=") != std::string::npos);  // the grammar, once
  CHECK(run.out.find("fused_cast x=") == std::string::npos);
  CHECK(run.out.find("tilewright operations") != std::string::npos);
  CHECK(tool("--version").code == 0);
}

TEST_CASE("cli: the catalogue") {
  const Json formats = tool("formats --json").json();
  CHECK(formats["formats"].size() >= 8);
  bool q4_0 = false;
  for (const Json& f : formats["formats"])
    q4_0 |= f["name"] == "q4_0" && f["block"] == 32 && f["bits_per_element"] == 4.5;
  CHECK(q4_0);
  const Json encoders = tool("encoders --json").json();
  std::size_t stated = 0;
  for (const Json& f : formats["formats"]) stated += f["encoders"].size();
  CHECK(encoders["encoders"].size() == stated);
  bool amax7 = false;
  for (const Json& e : encoders["encoders"])
    amax7 |= e["format"] == "q4_0" && e["encoder"] == "amax7" && e["error"]["largest"] == 458528 &&
             e["error"]["amax"].get<double>() > 0.0714 && e["error"]["amax"].get<double>() < 0.073 && !e["keeps_nan"];
  CHECK(amax7);
  const Json archs = tool("archs --json").json();
  CHECK(archs["archs"].size() >= 4);
  CHECK(archs["devices"].empty());
  CHECK(tool("families --json").json()["families"].size() >= 3);
  CHECK(tool("formats --markdown").out.rfind("| format |", 0) == 0);
  CHECK(tool("operations --markdown").out.find("| gemm | global | mul\\|div |") != std::string::npos);
}

TEST_CASE("cli: plan and emit need no GPU") {
  const Json plan = tool(std::string("plan --json --top 3 --arch sm_90a ") + kGemm).json();
  CHECK(plan["candidates"].size() == 3);
  CHECK(plan["candidates"][0]["threads"] > 0);
  CHECK(plan["problem"] == "gemm x=q8_1 w=q4_0 y=f32 m=4 n=384 k=1536");
  CHECK(tool("plan gemm x=q8_1 w=q4_0 y=f32 m=4 n=384 k=1536 --arch sm_80").code == 0);  // one word per field

  const std::string candidate = plan["candidates"][1]["candidate"];
  const Json emit = tool(std::string("emit --json --arch sm_90a ") + kGemm + " --candidate '" + candidate + "'").json();
  CHECK(emit["text"].get<std::string>().find("#include") != std::string::npos);
  CHECK_FALSE(emit["headers"].empty());
  // What a profiler shows tells kernels apart, but not problems that share a binary.
  CHECK(emit["entry"].get<std::string>().starts_with("tw_gemm_q8_1_q4_0_f32_"));
  CHECK(emit["text"].get<std::string>().find(emit["entry"].get<std::string>() + "(TW_PARAM") != std::string::npos);
  const std::string folder = scratch() / "emitted";
  CHECK(tool(std::string("emit --arch sm_80 ") + kGemm + " --dir '" + folder + "'").code == 0);
  CHECK(fs::exists(folder + "/kernel.cu"));
}

TEST_CASE("cli: export writes kernels for programs that load them") {
  const std::string folder = scratch() / "exported";
  const Ran ran = tool(std::string("export --json --arch sm_90a,sm_80 ") + kGemm + " --dir '" + folder + "'");
  if (ran.code == 4 && ran.err.find("nvrtc") != std::string::npos) {
    WARN("no libnvrtc: " << ran.err);
    return;
  }
  INFO(ran.err);
  REQUIRE(ran.code == 0);
  const Json all = ran.json();
  REQUIRE(all.size() == 2);
  for (const Json& target : all) {
    const std::string where = folder + "/" + target["target"].get<std::string>() + "/";
    CHECK(Json::parse(std::ifstream(where + "kernels.json")) == target);
    const Json& problem = target["problems"][0];
    const std::size_t kernels = problem["kernels"].size();
    REQUIRE(kernels > 0);
    for (const Json& kernel : problem["kernels"]) {
      std::ifstream file(where + kernel["file"].get<std::string>(), std::ios::binary);
      std::string image(std::istreambuf_iterator<char>(file), {});
      CHECK(
          image.starts_with("\x7f"
                            "ELF"));
      CHECK(image.find(kernel["entry"].get<std::string>()) != std::string::npos);
      CHECK(kernel["threads"] > 0);
    }
    // Every number of rows has a kernel.
    std::int64_t before = 0;
    for (const Json& row : problem["rows"]) {
      CHECK(row["kernel"] < kernels);
      if (!row["up_to"].is_null()) CHECK(row["up_to"] > std::exchange(before, row["up_to"].get<std::int64_t>()));
    }
    CHECK(problem["rows"].back()["up_to"].is_null());
    const Json& arguments = problem["arguments"];
    CHECK(arguments["pointers"][0]["name"] == "x.data");
    CHECK(arguments["rows_at"].is_number());
    for (const Json& pointer : arguments["pointers"]) CHECK(pointer["offset"] < arguments["bytes"]);
  }
  refused(std::string("export --arch x86-64-v3 ") + kGemm + " --dir '" + folder + "'", 1,
          "only GPUs' kernels are files");
}

TEST_CASE("cli: run by the plain reference says so, and checks") {
  const std::string tensor = "--tensor blk.0.ffn_down.weight.q4_0 ";
  const Json run = tool(std::string("run --cpu --json ") + kGemm + " " + kTinyModel + tensor).json();
  CHECK(run["executed_on"] == "cpu reference");
  CHECK(run["verified"] == true);
  CHECK(run["checked"] == 4 * 384);
  CHECK(run["error_of_bound"] < 1);
  const Ran text = tool(std::string("run --cpu ") + kGemm);
  CHECK(text.code == 0);
  CHECK(text.out.find("CPU reference was asked for") != std::string::npos);
  CHECK(text.err.empty());
  CHECK(text.out.find("result   verified") != std::string::npos);
  for (const char* problem :
       {"\"gemm x=q8_1 w=q4_k y=f32 m=3 n=384 k=1536\" --tensor blk.0.ffn_down.weight.q4_k ",
        "\"gemm x=f16 w=f16 y=f16 m=3 n=384 k=384 bias=f32 act=gelu\" --tensor blk.0.attn_q.weight.f16 ",
        "\"gemm x=q8_1 w=q8_0 y=f32 m=3 n=384 k=1536\" --tensor blk.0.ffn_down.weight ",
        "\"gemm x=q8_1 x_from=bf16 w=q8_0 y=f32 m=3 n=384 k=1536\" --tensor blk.0.ffn_down.weight ",
        "\"cast x=f32 y=q8_0 rows=384 cols=1536\" --tensor blk.0.ffn_down.weight "})
    for (const char* how : {"run --cpu --json ", "run --json "})
      CHECK(tool(std::string(how) + problem + kTinyModel + cache_flag("models.db")).json()["verified"] == true);

  refused(std::string("run --device 0 ") + kGemm, 4, "device=0");
  refused(std::string("run --cpu --tune ") + kGemm, 4, "the plain CPU reference was asked for");
  refused("run --tune 'fake_quant x=f32 rows=4 cols=64'", 4, "no GPU was found, and ");
  refused(std::string("tune --device 0 ") + kGemm, 4, "GPU");
  refused(std::string("run ") + kGemm + " " + kTinyModel, 1, "--tensor");
  refused(std::string("run ") + kGemm + " " + kTinyModel + "--tensor nothing", 1, "blk.0.ffn_down.weight");
  refused(std::string("run ") + kGemm + " " + kTinyModel + "--tensor blk.0.attn_q.weight.q4_0", 1, "384 x 384");
  refused(std::string("run ") + kGemm + " " + kTinyModel + "--tensor blk.0.ffn_down.weight.q8_0", 1, "q8_0");
  refused(std::string("run ") + kGemm + " --model README.md --tensor x", 1, "magic");
}

TEST_CASE("cli: a convolution is planned, written out and run as a gemm is") {
  const std::string conv =
      "\"conv x=bf16 w=bf16 y=bf16 n=1 c=16 in=6x9x11 k=24 kernel=3 pad=0x1x1 cache=2 bias=f32 residual=bf16 "
      "act=silu\"";
  const Json run = tool("run --json " + conv).json();
  CHECK(run["verified"] == true);
  CHECK(run["checked"] == 4 * 9 * 11 * 24);
  const Json plan = tool("plan --json --top 0 --arch sm_80 " + conv).json();
  CHECK(plan["candidates"].size() > 3);
  CHECK(plan["problem"].get<std::string>().find("kernel=3x3x3 pad=0x1x1 cache=2") != std::string::npos);
  CHECK(plan["candidates"].back()["candidate"] == "reference oracle=0");
  const Json emit = tool("emit --json --arch sm_80 " + conv).json();
  CHECK(emit["text"].get<std::string>().find("tw::conv::Direct<") != std::string::npos);
  // Every line of a workload that ships is a problem.
  std::ifstream workload(tilewright::paths::source_dir() + "/examples/workloads/wan2.1-vae.txt");
  int problems = 0;
  for (std::string line; std::getline(workload, line);)
    if (line.starts_with("conv")) {
      CHECK(tool("plan --top 1 --arch sm_90a \"" + line + "\"").code == 0);
      ++problems;
    }
  CHECK(problems == 11);
}

TEST_CASE("cli: fake quantizations are planned, written out and run as a cast is") {
  for (const std::string text : {"fp4_fake_quant x=bf16 y=bf16 rows=5 cols=512 block=128",
                                 "fp4_fake_quant x=f16 y=f32 rows=5 cols=77 block=32"}) {
    const Json run = tool("run --json \"" + text + "\"").json();
    CHECK(run["verified"] == true);
    CHECK(run["checked"] == run["outputs"]);
    const Json plan = tool("plan --json --top 0 --arch sm_75 \"" + text + "\"").json();
    CHECK(plan["candidates"].size() > 4);
    CHECK(plan["candidates"].back()["candidate"] == "reference");
    const Json emit = tool("emit --json --arch sm_75 \"" + text + "\"").json();
    CHECK(emit["text"].get<std::string>().find("tw::fp4_fake_quant::Blocks<") != std::string::npos);
  }
  const std::string model = std::string(" ") + kTinyModel + "--tensor blk.0.attn_q.weight.f16";
  CHECK(tool("run --json \"fp4_fake_quant x=f16 y=f16 rows=384 cols=384\"" + model).json()["verified"] == true);
  refused("run \"fp4_fake_quant x=bf16 y=bf16 rows=5 cols=520 block=24\"", 1, "block must be one of");
  refused("run \"fp4_fake_quant x=bf16 y=bf16 rows=5 cols=520 block_size=16\"", 1, "block");
}

TEST_CASE("cli: fused and stochastic casts are planned, written out and run") {
  for (const auto& [text, type] :
       {std::pair{"fused_cast x=bf16 y=e4m3_row rows=5 cols=512 residual=add norm=rms weight=bf16",
                  "fused_cast::Rows<"},
        {"fused_cast x=f16 y=q8_1 rows=5 cols=96 act=silu gate=first", "fused_cast::Rows<"},
        {"cast x=f32 y=nvfp4 rows=5 cols=96 rounding=stochastic", "cast::Encode<"}}) {
    const std::string quoted = std::string(" \"") + text + "\"";
    const Json run = tool("run --json" + quoted).json();
    CHECK(run["verified"] == true);
    CHECK(run["checked"] == run["outputs"]);
    CHECK(tool("plan --json --top 0 --arch sm_75" + quoted).json()["candidates"].size() > 2);
    CHECK(tool("emit --json --arch sm_75" + quoted).json()["text"].get<std::string>().find(type) != std::string::npos);
  }
  refused("run \"fused_cast x=bf16 y=e4m3_row rows=5 cols=64 gate=first norm=rms\"", 1, "norm=rms is not supported");
  refused("run \"cast x=f32 y=q4_0 rows=5 cols=64 rounding=stochastic\"", 1, "y=q4_0 is not supported");
}

TEST_CASE("cli: prewarm compiles once; the cache can be listed, shipped, checked and repaired") {
  const std::string cache = cache_flag("warm.db"), shipped = scratch() / "shipped.db";
  const std::string prewarm =
      "prewarm --json --arch sm_80,sm_90a --top 1 --no-buckets --workload tests/readme/workload.txt" + cache;
  const Ran ran = tool(prewarm);
  if (ran.code == 4 && ran.err.find("nvrtc") != std::string::npos) {
    WARN("no libnvrtc: " << ran.err);
    return;
  }
  const Json first = ran.json();
  CHECK(ran.code == 0);
  const int compiled = first["compiled"];
  CHECK(compiled >= 2);  // and what measuring needs
  CHECK(first["failed"] == 0);
  CHECK(first["compile_seconds"].size() == static_cast<std::size_t>(compiled));
  const Json second = tool(prewarm).json();
  CHECK(second["compiled"] == 0);
  CHECK(second["skipped"] >= 2);

  const Json list = tool("cache ls --json --kind binary" + cache).json();
  REQUIRE(list["entries"].size() >= 2);
  CHECK(tool("cache show " + list["entries"][0]["id"].get<std::string>() + cache).json().is_object());
  CHECK(tool("cache verify --json" + cache).json()["damaged"].empty());
  CHECK(tool("cache gc --json" + cache).code == 0);
  CHECK(tool(std::string("cache explain --arch sm_90a ") + kGemm + cache).code == 0);
  CHECK(tool("cache export '" + shipped + "'" + cache).code == 0);
  CHECK(tool("cache merge --json '" + shipped + "'" + cache_flag("other.db")).json()["added"] >= 2);
  CHECK(tool("cache import --json '" + shipped + "'" + cache_flag("third.db")).code == 0);
  CHECK(tool("cache ls --json --kind binary" + cache_flag("third.db")).json()["entries"].empty());  // never binaries
}

TEST_CASE("cli: a damaged cache gives 3 until it is repaired") {
  refused("cache verify" + cache_flag("none.db"), 1, "does not exist");
  const std::string path = scratch() / "garbage.db";
  std::ofstream(path) << std::string(8192, 'x');
  const Ran garbage = tool("cache verify --json" + cache_flag("garbage.db"));
  CHECK(garbage.code == 3);
  CHECK_FALSE(garbage.json()["damaged"].empty());
}
