// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/ggml.h"

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

TEST_CASE("bench: a lower target's ggml has its features and no more") {
  CHECK(ggml_options(host_arch()) == "-DGGML_NATIVE=ON");
  const auto has = [](const char* target, const char* option) {
    const std::string options = ggml_options(arch(target)) + " ";
    CAPTURE(target, option, options);
    CHECK(options.starts_with("-DGGML_NATIVE=OFF "));
    const bool on = options.find(std::string(" -DGGML_") + option + "=ON ") != std::string::npos;
    CHECK(on == (options.find(std::string(" -DGGML_") + option + "=OFF ") == std::string::npos));
    return on;
  };
  for (const char* target : {"x86-64", "x86-64-v3", "x86-64-v3+avxvnni", "x86-64-v4+vnni"}) {
    if (target == std::string_view(host_arch().name)) continue;
    const std::string name = target;
    for (const char* option : {"SSE42", "AVX", "F16C", "FMA", "BMI2", "AVX2"})
      CHECK(has(target, option) == (name != "x86-64"));
    CHECK(has(target, "AVX_VNNI") == (name == "x86-64-v3+avxvnni"));
    for (const char* option : {"AVX512", "AVX512_VNNI"}) CHECK(has(target, option) == (name == "x86-64-v4+vnni"));
    for (const char* option : {"AMX_TILE", "AMX_INT8"}) CHECK_FALSE(has(target, option));
  }
  if (std::string_view("armv8.2+dotprod") != host_arch().name)
    CHECK(ggml_options(arch("armv8.2+dotprod")) == "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod");
}

TEST_CASE("bench: a folder that is not ggml's, and one that does not build") {
  const Folder folder;
  const std::string source = folder.path;
  CHECK(refusal([&] { Ggml(source, host_arch()); }).allowed().find("include/ggml-cpu.h") != std::string::npos);
  std::filesystem::create_directory(source + "/include");
  std::ofstream(source + "/include/ggml-cpu.h") << "";
  std::ofstream(source + "/CMakeLists.txt") << "message(FATAL_ERROR \"no such processor\")\n";
  const Error failed = refusal([&] { Ggml(source, host_arch()); });
  CHECK(failed.value() == source);
  CHECK(failed.allowed().find("no such processor") != std::string::npos);
}
