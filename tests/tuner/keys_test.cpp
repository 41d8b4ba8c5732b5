// SPDX-License-Identifier: Apache-2.0
#include "tuner/keys.h"

#include <set>

#include "support/catch.h"
#include "templates/common/specialize.h"

using namespace tilewright;
using namespace tilewright::tuner;

namespace {

Source sample() {
  Source s;
  s.name = "a";
  s.entry = "k";
  s.text = "#include \"top.cuh\"\n";
  s.headers = {{"top.cuh", "  #  include <deep/one.cuh>\n"},
               {"deep/one.cuh", "#include \"two.cuh\"\n#include \"absent.cuh\""},
               {"deep/two.cuh", "#include \"top.cuh\"  // a cycle"},
               {"unused.cuh", "x"}};
  s.plan.threads = 32;
  return s;
}

std::string hash(const Source& s, const char* target = "sm_90a", const char* compiler = "13.0") {
  HeaderIndex headers;
  return binary_key(s, arch(target), compiler, headers).hash();
}

}  // namespace

TEST_CASE("the closure follows includes, wherever they are relative to", "[keys]") {
  HeaderIndex index;
  std::vector<std::string> names;
  for (auto& [name, text] : index.closure(sample())) names.push_back(name);
  CHECK(names == std::vector<std::string>{"deep/one.cuh", "deep/two.cuh", "top.cuh"});
  CHECK(included_names("#include\n#include \"open\n#include \"a\"\n#") == std::vector<std::string>{"a"});
}

TEST_CASE("everything that changes a binary changes its key, nothing else does", "[keys]") {
  std::set<std::string> keys{hash(sample())};
  auto changes = [&](const char* what, auto change) {
    Source s = sample();
    change(s);
    INFO(what);
    CHECK(keys.insert(hash(s)).second);
  };
  changes("text", [](Source& s) { s.text += " "; });
  changes("entry", [](Source& s) { s.entry = "j"; });
  changes("option", [](Source& s) { s.options = {"-a", "-b"}; });
  changes("order of options", [](Source& s) { s.options = {"-b", "-a"}; });
  changes("plan", [](Source& s) { s.plan.shared_bytes = 1; });
  changes("grid", [](Source& s) { s.plan.x.per_rows = 3; });
  changes("persistent", [](Source& s) { s.plan.persistent = 1; });
  changes("overlap", [](Source& s) { s.plan.overlap = true; });
  changes("rows of a launch", [](Source& s) { s.plan.most_rows = 64; });
  changes("a CPU's launch", [](Source& s) { s.plan.cpu = CpuLaunch{}; });
  changes("its blocks", [](Source& s) { s.plan.cpu = {{2, 0, 0}}; });
  changes("its first phase", [](Source& s) { s.plan.cpu = {{1, 0, 0}, {3, 0, 0}}; });
  changes("its memory", [](Source& s) { s.plan.cpu = {{1, 0, 0}, {0}, {3, 0, 0}}; });
  changes("its parts", [](Source& s) { s.plan.cpu = {{1, 0, 0}, {0}, {0}, 3}; });
  changes("AMX", [](Source& s) { s.plan.cpu = {{1, 0, 0}, {0}, {0}, 0, true}; });
  changes("a map", [](Source& s) { s.plan.map_count = 1; });
  changes("two maps", [](Source& s) { s.plan.map_count = 2; });
  int fields = 0;
  for (std::uint32_t TensorMapPlan::*field :
       {&TensorMapPlan::pointer, &TensorMapPlan::rows_at, &TensorMapPlan::stride_at, &TensorMapPlan::element_bytes,
        &TensorMapPlan::box_inner, &TensorMapPlan::box_rows, &TensorMapPlan::swizzle, &TensorMapPlan::inner_at,
        &TensorMapPlan::box_panels, &TensorMapPlan::block, &TensorMapPlan::block_elements, &TensorMapPlan::axes,
        &TensorMapPlan::tile_boxes})
    for (int i = 0; i < 2; ++i, ++fields)
      changes("a field of a map", [&](Source& s) { s.plan.map_count = 2, s.plan.maps[i].*field = 77; });
  for (std::uint64_t TensorMapPlan::*field : {&TensorMapPlan::rows, &TensorMapPlan::inner, &TensorMapPlan::behind})
    for (int i = 0; i < 2; ++i, ++fields)
      changes("a wide field of a map", [&](Source& s) { s.plan.map_count = 2, s.plan.maps[i].*field = 77; });
  for (int a = 0; a < 4; ++a)
    for (auto TensorMapPlan::*list : {&TensorMapPlan::box_axes, &TensorMapPlan::steps})
      changes("an axis of a map", [&](Source& s) {
        s.plan.map_count = 1, s.plan.maps[0].axes = 4;
        (s.plan.maps[0].*list)[static_cast<std::size_t>(a)] = 7;
      });
  CHECK(fields == 32);
  changes("a deep header", [](Source& s) { s.headers[2].text = std::string(s.headers[2].text.view()) + " "; });
  CHECK(keys.insert(hash(sample(), "sm_80")).second);
  CHECK(keys.insert(hash(sample(), "sm_90a", "12.9")).second);

  Source same = sample();
  same.headers[3].text = "not reached";
  std::swap(same.headers[0], same.headers[2]);
  same.name = "another message";
  CHECK(hash(same) == hash(sample()));
}

TEST_CASE("a header index notices that a header changed under its name", "[keys]") {
  HeaderIndex index;
  Source s = sample();
  auto before = index.closure(s);
  s.headers[0].text = std::string(s.headers[0].text.view()) + "\n";
  CHECK(index.closure(s) != before);
}

TEST_CASE("keys can be read", "[keys]") {
  HeaderIndex headers;
  std::string text = binary_key(sample(), arch("sm_90a"), "13.0 build 88", headers).transcript();
  for (const char* part : {"target=sm_90a\n", "compiler=13.0 build 88\n", "entry=k\n", "header top.cuh=", "library="})
    CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("the build's hash of an embedded template is its text's, and is not believed of another text", "[keys]") {
  REQUIRE(kEmbeddedCount > 10);
  for (std::size_t i = 0; i < kEmbeddedCount; ++i) {
    INFO(kEmbedded[i].name);
    CHECK(sha256_hex(kEmbedded[i].text()) == kEmbedded[i].sha256);
  }
  const EmbeddedFile& file = kEmbedded[0];
  Source s;
  s.text = std::string("#include \"") + file.name + "\"\n";
  const auto hash_of = [&](const std::string& text) {
    s.headers = {{file.name, text}};
    return HeaderIndex().closure(s).at(0).second;
  };
  const std::string text(file.text());
  CHECK(hash_of(text) == sha256_hex(text));
  CHECK(hash_of(text + " ") == sha256_hex(text + " "));
}
