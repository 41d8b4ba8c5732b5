// SPDX-License-Identifier: Apache-2.0
// Which targets this machine's CPU runs, by what Linux says of it.
#include <tilewright/host_archs.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "support/catch.h"

using namespace tilewright;

namespace {

// The words of the first "flags" line: what the CPU has and the kernel has not disabled. Empty: there is none.
std::set<std::string> flags() {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> found;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("flags")) {
      std::istringstream words(line.substr(line.find(':') + 1));
      for (std::string word; words >> word;) found.insert(word);
      break;
    }
  return found;
}

// A feature of LLVM as Linux calls it.
std::string linux_name(const std::string& feature) {
  static const std::map<std::string, std::string> names = {{"64bit", "lm"},          {"x87", "fpu"},
                                                           {"sse3", "pni"},          {"sse4.1", "sse4_1"},
                                                           {"sse4.2", "sse4_2"},     {"bmi", "bmi1"},
                                                           {"lzcnt", "abm"},         {"sahf", "lahf_lm"},
                                                           {"avxvnni", "avx_vnni"},  {"avx512vnni", "avx512_vnni"},
                                                           {"amx-tile", "amx_tile"}, {"amx-int8", "amx_int8"},
                                                           {"amx-bf16", "amx_bf16"}};
  const auto found = names.find(feature);
  return found == names.end() ? feature : found->second;
}

}  // namespace

TEST_CASE("this machine's CPU runs the targets whose features it has, all of them") {
  const std::set<std::string> has = flags();
  if (has.empty()) return;  // no x86
  std::vector<std::string> expected, found;
  for (const Arch& a : cpu_archs()) {
    if (!std::string_view(a.cpu->triple).starts_with("x86_64")) continue;
    std::istringstream features(a.cpu->features);
    bool all = true;
    for (std::string one; std::getline(features, one, ',');) {
      REQUIRE(one.starts_with("+"));
      all &= has.contains(linux_name(one.substr(1)));
    }
    if (all) expected.push_back(a.name);
  }
  for (const Arch* a : host_archs()) found.push_back(a->name);
  CHECK(found == expected);
}

TEST_CASE("the best target of this machine is the last that it runs") {
  REQUIRE(!host_archs().empty());
  CHECK(host_archs().back() == &host_arch());
  CHECK(!*host_archs().front()->cpu->features);  // every machine has the row without kernels
  const Arch* before = nullptr;
  for (const Arch* a : host_archs()) {
    CHECK(before < a);  // rows of one table, in its order
    before = a;
  }
}
