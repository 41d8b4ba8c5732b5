// SPDX-License-Identifier: Apache-2.0
#include "jit/compile/nvrtc.h"

#include "jit_test.h"
#include "support/paths.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("nvrtc: version with the build number, the same every time") {
  const std::string version = compiler_version(real_compiler());
  CHECK(version.find(" build ") != std::string::npos);
  CHECK(version == compiler_version(real_compiler()));
  const jit::Nvrtc& nvrtc = jit::Nvrtc::open(real_compiler().nvrtc);
  CHECK(version.rfind(nvrtc.version_text(), 0) == 0);
  CHECK(nvrtc.version() >= 12000);
  CHECK_FALSE(nvrtc.archs().empty());
}

TEST_CASE("nvrtc: one object per library, however it is named") {
  const jit::Nvrtc& nvrtc = jit::Nvrtc::open(real_compiler().nvrtc);
  const std::string path = nvrtc.path();
  CHECK(&jit::Nvrtc::open(path) == &nvrtc);
  CHECK(&jit::Nvrtc::open(path.substr(0, path.rfind('/'))) == &nvrtc);
}

TEST_CASE("nvrtc: the search finds a library that is already loaded") {
  const jit::Nvrtc& nvrtc = jit::Nvrtc::open(real_compiler().nvrtc);
  CHECK(&jit::Nvrtc::open("") == &nvrtc);
}

TEST_CASE("libnvrtc is missing") {
  const auto error =
      error_of(ErrorCode::library_missing, [] { compiler_version({.nvrtc = "/nonexistent/libnvrtc.so.13"}); });
  CHECK(mentions(error, "libnvrtc"));
  CHECK(mentions(error, "/nonexistent/libnvrtc.so.13"));
  const auto directory = error_of(ErrorCode::library_missing, [] { compiler_version({.nvrtc = "/usr/share"}); });
  CHECK(mentions(directory, "/usr/share/libnvrtc.so"));
  // Loadable, but something else.
  const auto wrong = error_of(ErrorCode::library_missing, [] { compiler_version({.nvrtc = "libm.so.6"}); });
  CHECK(mentions(wrong, "nvrtcVersion"));
}

TEST_CASE("the builtins beside libnvrtc are of another version") {
  const auto error = error_of(ErrorCode::library_missing, [] { compiler_version({.nvrtc = paths::nvrtc_mixed()}); });
  CHECK(error.field() == "libnvrtc-builtins.so.12.4");
  CHECK(mentions(error, paths::nvrtc_mixed()));
  CHECK(mentions(error, "libnvrtc-builtins.so.12.3"));
}

TEST_CASE("an NVRTC too old for the target still serves the others") {
  const CompileOptions old = {.nvrtc = paths::nvrtc_old(), .compiler_cache = false};
  CHECK(compiler_version(old) == "12.0 build 42");
  const auto error =
      error_of(ErrorCode::library_missing, [&] { compile(source_of(""), target("sm_120a", 12, 0), old); });
  CHECK(mentions(error, "sm_120a"));
  CHECK(error.value() == "12.0");
  CHECK(mentions(error, paths::nvrtc_old()));
  Source minimal = source_of("");
  minimal.options = {kMinimal};
  const Binary binary = compile(minimal, sm_80(), old);  // without the options that 12.0 does not know
  CHECK(binary.target == "sm_80");
}
