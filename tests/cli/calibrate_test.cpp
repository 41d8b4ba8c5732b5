// SPDX-License-Identifier: Apache-2.0
// calibrate, as its users run it.
#include <cmath>
#include <cstring>
#include <random>

#include "cli/tool.h"

using namespace tilewright;
using namespace cli_tool;

namespace {

const std::string kData = "tests/golden/calibration/";

std::string quoted(const std::string& path) { return "'" + path + "'"; }

// A file in the scratch folder, which is its path.
std::string written(const char* name, const std::string& bytes) {
  std::ofstream(scratch() / name, std::ios::binary) << bytes;
  return scratch() / name;
}

std::string npy(const char* name, const std::string& descr, const std::string& shape, const std::string& data) {
  const std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return written(name, std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0' + header + data);
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string safetensors(const char* name, const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return written(name, std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
}

// Two tensors of floats, and one of integers.
std::string model(const char* name, float factor) {
  std::vector<float> values;
  for (int i = 0; i < 10; ++i) values.push_back(factor * static_cast<float>(i - 4));
  return safetensors(name,
                     R"({"a.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},)"
                     R"("b.weight":{"dtype":"F32","shape":[2],"data_offsets":[32,40]},)"
                     R"("steps":{"dtype":"I64","shape":[1],"data_offsets":[40,48]}})",
                     raw(values) + std::string(8, '\0'));
}

}  // namespace

TEST_CASE("calibrate: what the command prints is what the golden script computed") {
  const Json expected = Json::parse(slurp(paths::source_dir() + "/" + kData + "expected.json"));
  for (const char* name : {"gauss", "relu", "skewed"}) {
    for (const Json& entry : expected["cases"][name]) {
      if (entry["method"] != "min-max" || entry["target"] != "int8") continue;
      const bool symmetric = entry["symmetric"];
      const Json all = tool("calibrate --json " + kData + name + ".npy " + (symmetric ? "" : "--asymmetric")).json();
      CHECK(all["method"] == "min-max");
      CHECK(all["symmetric"] == symmetric);
      const Json& t = all["tensors"][0];
      CHECK(t["name"] == name);
      CHECK(t["clip_min"][0] == entry["min"]);
      CHECK(t["clip_max"][0] == entry["max"]);
      CHECK(t["scale"][0].get<float>() == entry["scale"].get<float>());
      CHECK(t["zero_point"][0] == entry["zero_point"]);
    }
  }
  const Ran r = tool("calibrate " + kData + "gauss.npy --method mse --bits 4");
  CHECK(r.code == 0);
  CHECK(r.out.find("scale") != std::string::npos);
  CHECK(r.out.find("gauss   2400") != std::string::npos);
}

TEST_CASE("calibrate: all .npy files are batches of one tensor") {
  const std::string one = npy("one.npy", "<f4", "(2,)", raw<float>({-1, 2}));
  const std::string two = npy("two.npy", "<V2", "(3,)", raw<std::uint16_t>({0x4080, 0xc040, 0x7fc0}));  // 4, -3, NaN
  const std::string both = quoted(one) + " " + quoted(two);
  const Json t = tool("calibrate --json --method moving-average --momentum 0.5 --asymmetric " + both).json()["tensors"];
  REQUIRE(t.size() == 1);
  CHECK(t[0]["name"] == "one");
  CHECK(t[0]["arrays"] == 2);
  CHECK(t[0]["count"][0] == 4);
  CHECK(t[0]["nans"][0] == 1);
  CHECK(t[0]["clip_min"][0] == -2);
  CHECK(t[0]["clip_max"][0] == 3);
}

TEST_CASE("calibrate: a file larger than what is in memory at once is the same as its parts") {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> values(2500000);
  for (double& v : values) v = normal(random);
  const std::vector<double> head(values.begin(), values.begin() + 1000000),
      tail(values.begin() + 1000000, values.end());
  const std::string whole = npy("whole.npy", "<f8", "(2500000,)", raw(values));
  const std::string parts = quoted(npy("whole_head.npy", "<f8", "(1000000,)", raw(head))) + " " +
                            quoted(npy("whole_tail.npy", "<f8", "(1500000,)", raw(tail)));
  Json a = tool("calibrate --json --method percentile --percentile 99 " + quoted(whole)).json()["tensors"][0];
  Json b = tool("calibrate --json --method percentile --percentile 99 " + parts).json()["tensors"][0];
  CHECK(a["count"][0] == 2500000);
  for (Json* j : {&a, &b}) j->erase("name"), j->erase("arrays");
  CHECK(a == b);
  CHECK(std::fabs(a["clip_max"][0].get<double>() - 2.576) < 0.02);
}

TEST_CASE("calibrate: tensors of safetensors files, by pattern and by channel") {
  const std::string files = quoted(model("m1.safetensors", 1)) + " " + quoted(model("m2.safetensors", -2));
  const Json all = tool("calibrate --json " + files).json();
  REQUIRE(all["tensors"].size() == 2);
  CHECK(all["tensors"][0]["name"] == "a.weight");
  CHECK(all["tensors"][0]["arrays"] == 2);
  CHECK(all["tensors"][0]["min"][0] == -6);
  CHECK(all["tensors"][0]["max"][0] == 8);
  const Json rows = tool("calibrate --json --tensor 'a*' --channels 0 " + files).json();
  REQUIRE(rows["tensors"].size() == 1);
  CHECK(rows["axis"] == 0);
  CHECK(rows["tensors"][0]["clip_max"] == Json::parse("[8, 6]"));
  const Json columns = tool("calibrate --json --tensor 'a*' --channels -1 " + files).json();
  CHECK(columns["tensors"][0]["clip_max"] == Json::parse("[8, 6, 4, 6]"));
  refused("calibrate --tensor 'c*' " + files, 1, "a.weight");
  refused("calibrate --tensor steps " + files, 1, "steps (I64)");
  refused("calibrate --channels 1 " + files, 1, "tensor 'b.weight': --channels must");
}

TEST_CASE("calibrate: --out and --plot write whole files") {
  const std::string out = scratch() / "ranges.json", data = scratch() / "data.json", svg = scratch() / "ranges.svg";
  const std::string entropy = "calibrate --json --method entropy " + kData + "outliers.npy ";
  const Ran r = tool(entropy + "--out " + quoted(out) + " --plot " + quoted(data));
  CHECK(r.code == 0);
  CHECK(Json::parse(slurp(out)) == r.json());
  // The picture's data: every value, the range that is kept.
  const Json drawn = Json::parse(slurp(data));
  const Json tensor = r.json()["tensors"][0];
  CHECK(drawn["tensor"] == "outliers");
  CHECK(drawn["clip"] == Json{tensor["clip_min"][0], tensor["clip_max"][0]});
  CHECK(drawn["min"] == tensor["min"][0]);
  CHECK(drawn["max"] == tensor["max"][0]);
  std::uint64_t values = 0;
  for (const char* sign : {"negative", "positive"})
    for (const Json& count : drawn[sign]) values += count.get<std::uint64_t>();
  CHECK(values == tensor["count"][0]);
  CHECK(tool(entropy + "--plot " + quoted(svg), "TILEWRIGHT_PYTHON=" + quoted(echoing_python())).code == 0);
  CHECK(slurp(svg) == "svg\n" + nlohmann::ordered_json::parse(slurp(data)).dump());
  for (const auto& entry : fs::directory_iterator(scratch().path))
    CHECK(entry.path().filename().string().find(".json.") == std::string::npos);
  refused("calibrate " + kData + "gauss.npy --out /nonexistent/x.json", 1, "--out /nonexistent/x.json");
  const std::string input = model("read.safetensors", 1), before = slurp(input);
  refused("calibrate " + quoted(input) + " --out " + quoted(input), 1, "which is read");
  fs::create_hard_link(input, scratch() / "link.svg");
  refused("calibrate --tensor '*' " + quoted(input) + " --plot " + quoted(scratch() / "link.svg"), 1, "which is read");
  CHECK(slurp(input) == before);
  CHECK(tool("calibrate " + kData + "outliers.npy --out /dev/null --plot /dev/null",
             "TILEWRIGHT_PYTHON=" + quoted(echoing_python()))
            .code == 0);
  CHECK(fs::is_character_file("/dev/null"));
  refused("calibrate --plot x.svg " + quoted(model("m3.safetensors", 1)), 1, "choose one by --tensor");
}

TEST_CASE("calibrate: what cannot be calibrated is one line that names it") {
  const std::string gauss = kData + "gauss.npy ";
  refused("calibrate", 1, "files");
  refused("calibrate README.md", 1, "must end in .npy or .safetensors");
  refused("calibrate none.npy", 1, "none.npy");
  refused("calibrate " + gauss + "--method max", 1, "must be one of min-max");
  refused("calibrate " + gauss + "--method percentile --percentile 0", 1, "at most 100");
  refused("calibrate " + gauss + "--method percentile --percentile 101", 1, "at most 100");
  refused("calibrate " + gauss + "--method percentile --percentile nan", 1, "at most 100");
  refused("calibrate " + gauss + "--method moving-average --momentum 1", 1, "momentum must be");
  refused("calibrate " + gauss + "--percentile 5", 1, "is for --method percentile");
  refused("calibrate " + gauss + "--momentum 0.5", 1, "is for --method moving-average");
  refused("calibrate " + gauss + "--bits 9", 1, "int9");
  refused("calibrate " + gauss + "--bits 4 --to int4", 1, "excludes");
  refused("calibrate " + gauss + "--symmetric --asymmetric", 1, "excludes");
  refused("calibrate " + gauss + "--to e4m3 --asymmetric", 1, "e4m3 has no zero point");
  refused("calibrate " + gauss + "--channels 2", 1, "one of the array's 2 axes");
  refused("calibrate " + gauss + kData + "relu.npy --channels 0", 1, "channels must be 4");
  refused("calibrate " + quoted(npy("none.npy", "<f4", "(0,)", "")), 1, "data must have a number (got none)");
  // No elements, but extents whose product overflows.
  refused("calibrate --channels 1 " + quoted(npy("thin.npy", "<f4", "(0, 2, 1099511627776, 1099511627776)", "")), 1,
          "data of channel 0 must have a number (got none)");
  refused("calibrate " + quoted(npy("nan.npy", "<f4", "(1,)", raw<float>({NAN}))), 1,
          "data must have a number (got 1 NaNs)");
  refused("calibrate " + quoted(npy("inf.npy", "<f4", "(2,)", raw<float>({1, -INFINITY}))), 1,
          "element 1 must be finite or NaN (got -inf)");
  refused("calibrate " + quoted(npy("wide.npy", "<f8", "(1,)", raw<double>({1e300}))), 1,
          "element 0 must be finite or NaN (got inf)");
  refused("calibrate " + quoted(npy("int.npy", "<i4", "(1,)", raw<int>({1}))), 1, "int.npy: header 'descr' must be");
  refused("calibrate " + quoted(written("cut.npy", "\x93NUM")), 1, "magic");
}
