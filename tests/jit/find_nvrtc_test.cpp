// SPDX-License-Identifier: Apache-2.0
#include "jit/compile/find_nvrtc.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "jit_test.h"
#include "support/paths.h"

using namespace tilewright;
using namespace tilewright::test;
namespace fs = std::filesystem;

namespace {

// A directory with the compiler double where `layout` would have it, gone at the end.
struct Root {
  fs::path path;
  Root(const std::string& name, const std::string& layout) : path(fs::path(paths::binary_dir()) / "find-nvrtc" / name) {
    fs::remove_all(path);
    fs::create_directories(path / layout);
    for (const auto& file : fs::directory_iterator(paths::nvrtc_old()))
      fs::copy(file.path(), path / layout / file.path().filename());
  }
  ~Root() { fs::remove_all(path); }
};

}  // namespace

TEST_CASE("nvrtc: every layout that a place may have") {
  for (const char* layout :
       {".", "lib64", "lib", "targets/x86_64-linux/lib", "lib/tilewright", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib",
        "lib/python3.12/site-packages/nvidia/cu13/lib", "lib/python3/dist-packages/nvidia/cuda_nvrtc/lib",
        "local/lib/python3.11/dist-packages/nvidia/cu13/lib", "lib/python3.9/dist-packages/nvidia/cu13/lib",
        "versions/3.11.8/lib/python3.11/site-packages/nvidia/cu13/lib"}) {
    INFO(layout);
    const Root root("a place [of*]?", layout);  // characters that a pattern would take for its own
    const auto found = jit::nvrtc_directories(root.path);
    CHECK(std::any_of(found.begin(), found.end(),
                      [&](const std::string& d) { return fs::equivalent(d, root.path / layout); }));
    void* library = jit::find_nvrtc(root.path, {});
    CHECK(dlsym(library, "nvrtcVersion"));
    dlclose(library);
  }
}

TEST_CASE("nvrtc: the newest Python and the newest wheel come first") {
  const Root root("order", "lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib");
  fs::create_directories(root.path / "lib/python3.12/site-packages/nvidia/cu13/lib");
  fs::create_directories(root.path / "lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib");
  const auto found = jit::nvrtc_directories(root.path);
  const auto at = [&](const std::string& part) {
    return std::find_if(found.begin(), found.end(), [&](const auto& d) { return d.ends_with(part); }) - found.begin();
  };
  CHECK(at("3.12/site-packages/nvidia/cu13/lib") < at("3.12/site-packages/nvidia/cuda_nvrtc/lib"));
  CHECK(at("3.12/site-packages/nvidia/cuda_nvrtc/lib") < at("3.11/site-packages/nvidia/cuda_nvrtc/lib"));
  CHECK(jit::nvrtc_directories("/nonexistent").empty());
}

TEST_CASE("nvrtc: an error names the variable") {
  const auto error =
      error_of(ErrorCode::library_missing, [] { compiler_version({.nvrtc = "/nonexistent/libnvrtc.so.13"}); });
  CHECK(mentions(error, "TILEWRIGHT_NVRTC"));
  CHECK(mentions(error, "/nonexistent/libnvrtc.so.13"));
}

TEST_CASE("nvrtc: a FIFO in the place of a library is refused at once, not waited for") {
  const Root root("fifo", ".");
  const std::string fifo = root.path / "fifo.so";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(
      mentions(error_of(ErrorCode::library_missing, [&] { compiler_version({.nvrtc = fifo}); }), "not a regular file"));
  CHECK(mentions(error_of(ErrorCode::library_missing, [&] { Device::open(0, fifo); }), "not a regular file"));
}

TEST_CASE("nvrtc: the library that was found, its version and targets") {
  const CompilerInfo old = compiler_info({.nvrtc = paths::nvrtc_old()});
  CHECK(old.path == paths::nvrtc_old() + "/libnvrtc.so.12");
  CHECK(old.version == "12.0 build 42");
  CHECK(old.targets == std::vector<int>{75, 80, 90});
}
