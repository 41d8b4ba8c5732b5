// SPDX-License-Identifier: Apache-2.0
#include "bench/ggml.h"

#include <tilewright/error.h>

#include <fstream>

#include <filesystem>

#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;
using namespace tilewright::bench;

namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "tilewright_test_ggml_XXXXXX").string();
  Folder() { REQUIRE(::mkdtemp(path.data())); }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string program(const std::string& folder, const char* text) {
  const std::string path = folder + "/rival";
  std::ofstream(path) << "#!/bin/sh\n" << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace

TEST_CASE("bench: a product that ggml computes in another process") {
  const Folder folder;
  const std::string answers = program(folder.path, R"(echo "ready $1"
while read seconds; do echo "12.5 $seconds "; done)");
  GgmlProduct product(answers, {"CPU_REPACK", "unused"});
  REQUIRE(product);
  CHECK(product.buffer() == "CPU_REPACK");
  CHECK(product.run(0.25) == std::vector<double>{12.5, 0.25});
  CHECK(product.run(2) == std::vector<double>{12.5, 2});
  GgmlProduct moved(std::move(product));
  CHECK_FALSE(product);
  CHECK(moved.run(1) == std::vector<double>{12.5, 1});
}

TEST_CASE("bench: a buffer without kernels, and a product that crashes") {
  const Folder folder;
  CHECK_FALSE(GgmlProduct(program(folder.path, "exit 3"), {}));
  GgmlProduct crashes(program(folder.path, "echo ready AMX; read seconds; kill -SEGV $$"), {});
  REQUIRE(crashes);
  CHECK(crashes.run(1).empty());
  CHECK(crashes.run(1).empty());
  CHECK_THROWS_AS(GgmlProduct(folder.path + "/nothing", {}), Error);
}

TEST_CASE("bench: a folder that is not ggml's, and one that does not build") {
  const Folder folder;
  const std::string source = folder.path;
  CHECK(refusal([&] { Ggml{source}; }).allowed().find("include/ggml-cpu.h") != std::string::npos);
  std::filesystem::create_directory(source + "/include");
  std::ofstream(source + "/include/ggml-cpu.h") << "";
  std::ofstream(source + "/CMakeLists.txt") << "message(FATAL_ERROR \"no such processor\")\n";
  const Error failed = refusal([&] { Ggml{source}; });
  CHECK(failed.value() == source);
  CHECK(failed.allowed().find("no such processor") != std::string::npos);
}
