// SPDX-License-Identifier: Apache-2.0
// How commands have their pictures drawn. python/tests/test_plot.py has what is drawn.
#include "cli/tool.h"

using namespace cli_tool;

namespace {

const std::string kBench =
    "bench --device cpu \"gemm x=q8_1 w=q4_0 y=f32 m=1 n=64 k=256\" --m 1,4" + cache_flag("bench.db");

std::string program(const char* name, const std::string& body) {
  const std::string path = scratch() / name;
  std::ofstream(path) << "#!/bin/sh\n" << body;
  ::chmod(path.c_str(), 0700);
  return "TILEWRIGHT_PYTHON='" + path + "'";
}

}  // namespace

TEST_CASE("cli: bench prints its data and has it drawn, as SVG, as PNG, or not at all") {
  const std::string python = "TILEWRIGHT_PYTHON='" + echoing_python() + "'";
  for (const std::string kind : {"svg", "png"}) {
    const std::string file = scratch() / ("bench." + kind).c_str();
    const Ran ran = tool(kBench + "--json --svg '" + file + "'", python);
    INFO(ran.err);
    REQUIRE(ran.code == 0);
    const std::string drawn = slurp(file);
    REQUIRE(drawn.starts_with(kind + "\n"));
    CHECK(Json::parse(drawn.substr(4)) == ran.json());
    CHECK(ran.json()["rows_name"] == "m");
    REQUIRE(ran.json()["points"].size() == 2);
    CHECK(ran.json()["points"][1]["m"] == 4);
  }
  const std::string file = scratch() / "bench.json";
  const Ran data = tool(kBench + "--json --svg '" + file + "'", "TILEWRIGHT_PYTHON=/nonexistent/python3");
  CHECK(data.code == 0);
  CHECK(Json::parse(slurp(file)) == data.json());
}

TEST_CASE("cli: where nothing can draw, that is said before anything is measured") {
  const std::string file = scratch() / "none.svg";
  for (const std::string& python :
       {std::string("TILEWRIGHT_PYTHON=/nonexistent/python3"), program("bare", "exit 1\n")}) {
    const Ran ran = tool(kBench + "--svg '" + file + "'", python);
    INFO(ran.err);
    CHECK(ran.code == 4);
    CHECK(ran.out.empty());
    CHECK(ran.err.find("pip install 'tilewright[plots]'") != std::string::npos);
    CHECK(ran.err.find("--json") != std::string::npos);
    CHECK_FALSE(fs::exists(file));
  }
}

TEST_CASE("cli: a Python that fails leaves the file alone and is named") {
  const std::string file = scratch() / "kept.svg";
  std::ofstream(file) << "before";
  const Ran ran = tool(kBench + "--svg '" + file + "'", program("broken", "[ $1 = -c ] || { echo no >&2; exit 1; }\n"));
  CHECK(ran.code == 4);
  CHECK(ran.err.find("no\n") != std::string::npos);
  CHECK(ran.err.find("broken failed, as it says above") != std::string::npos);
  CHECK(slurp(file) == "before");
}
