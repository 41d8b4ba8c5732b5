// SPDX-License-Identifier: Apache-2.0
// bench, tensors and workload: from a model file to problems and their times.
#include "tool.h"

#include <cmath>

using namespace cli_tool;

namespace {

constexpr const char* kModel = "examples/models/minilm-l6-v2-tiny.gguf";

std::string config(const char* text) {
  const std::string path = scratch() / "config.json";
  std::ofstream(path) << text;
  return "'" + path + "'";
}

}  // namespace

TEST_CASE("cli: bench times every number of rows that is asked for") {
  const std::string bench = "bench 'gemm x=q8_1 w=q4_0 y=f32 m=1 n=256 k=512' --device cpu --m 4,1 --cache :memory: ";
  const Json points = tool(bench + "--json").json()["points"];
  REQUIRE(points.size() == 2);
  for (const Json& p : points) {
    const double us = p["microseconds"], m = p["m"];
    CHECK(us > 0);
    // 2 m n k operations; w once, in blocks of 18 bytes for 32 weights, and more for x and y.
    CHECK(std::abs(p["tflops"].get<double>() * us * 1e6 - 2 * m * 256 * 512) < 1);
    CHECK(p["gbps"].get<double>() * us * 1e3 > 256 * 512 / 32 * 18);
    CHECK(p["of_roofline"] > 0);
    CHECK_FALSE(p["kernel"].get<std::string>().empty());
  }
  CHECK(points[0]["m"] == 1);
  CHECK(points[1]["m"] == 4);
  const Ran csv = tool(bench + "--csv");
  CHECK(csv.out.starts_with("m,microseconds,gbps,tflops,of_roofline,kernel\n1,"));
  CHECK(contains(tool(bench).out, "of the roofline"));
  refused("bench 'pack w=q4_0 x=f16 n=64 k=256' --m 2 --device cpu", 1, "part of the problem");
}

TEST_CASE("cli: tensors lists what a file has") {
  const Json all = tool(std::string("tensors --json ") + kModel).json()["tensors"];
  bool found = false;
  for (const Json& t : all)
    found |= t["name"] == "blk.0.ffn_down.weight.q4_0" && t["shape"] == Json::parse("[384, 1536]") &&
             t["format"] == "q4_0" && t["bytes"] == 384 * 1536 / 32 * 18;
  CHECK(found);
  CHECK(contains(tool(std::string("tensors ") + kModel).out, "384 x 1536"));
  refused("tensors README.md", 1, "header");
  refused("tensors docs", 1, ".safetensors");
  const std::string cut = scratch() / "cut.gguf";
  std::ofstream(cut) << "GGUF";
  refused("tensors '" + cut + "'", 1, "cut.gguf");
}

TEST_CASE("cli: a model's workload is one that prewarm reads") {
  const Ran gguf = tool(std::string("workload --m 1,16 ") + kModel);
  CHECK(gguf.code == 0);
  CHECK(contains(gguf.out, "gemm x=q8_1 w=q4_0 y=f32 m=1 n=384 k=1536\n"));
  CHECK(contains(gguf.out, "gemm x=f16 w=f16 y=f16 m=16 n=384 k=384\n"));
  const std::string file = scratch() / "model.txt";
  std::ofstream(file) << gguf.out;
  // Read whole: the only complaint is about the device that is not there.
  refused("tune --device 0 --workload '" + file + "'", 4, "needs an NVIDIA GPU");

  const std::string llama = config(
      R"({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "num_hidden_layers": 32})");
  const Json problems = tool("workload --json --w int4_g128 --x f16 " + llama).json()["problems"];
  REQUIRE(problems.size() == 4);
  CHECK(problems[0]["problem"] == "gemm x=f16 w=int4_g128 y=f16 m=1 n=6144 k=4096");
  CHECK(problems[2]["problem"] == "gemm x=f16 w=int4_g128 y=f16 m=1 n=28672 k=4096");
  CHECK(problems[3]["layers"] == 32);
  refused("workload --x nothing " + llama, 1, "nothing");
  refused("workload " + config("{}"), 1, "hidden_size");
}
