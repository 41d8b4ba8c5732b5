// SPDX-License-Identifier: Apache-2.0
// A build machine without a GPU compiles for the machines a program will run on; the program ships the result beside
// itself, read-only, below whatever cache its user has. Here both happen in one process.
//
// usage: example_03_ship_a_cache FOLDER      (made if need be; only its owner may write there)
#include <tilewright/tilewright.h>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

using namespace tilewright;

namespace {

PrewarmReport prewarm(Options options, const std::vector<Problem>& problems) {
  const Arch* targets[] = {&arch("sm_80"), &arch("sm_90a")};
  PrewarmPolicy policy;
  policy.top = 2;
  policy.every_bucket = false;
  return Engine(std::move(options)).prewarm(problems, targets, policy);
}

void run(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  const std::string shipped = (folder / "shipped.db").string();
  std::filesystem::remove(shipped);
  const std::vector<Problem> problems = {Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=1024 k=1024"),
                                         Problem::parse("gemm x=f16 w=f16 y=f16 m=64 n=1024 k=1024")};

  // The build machine.
  Options build = Options::from_env();
  build.cache = (folder / "build.db").string();
  const PrewarmReport first = prewarm(build, problems);
  StoreOptions store;
  store.path = build.cache;
  Store(store).export_to(shipped);
  std::printf("build machine: %d compiled, %d skipped; shipped.db has %ju bytes\n", first.compiled, first.skipped,
              std::uintmax_t{std::filesystem::file_size(shipped)});

  // The user's machine: an empty cache of its own, over the shipped one.
  Options user = Options::from_env();
  user.cache = ":memory:";
  user.shipped = {shipped};
  const PrewarmReport second = prewarm(user, problems);
  std::printf("user's machine: %d compiled, %d skipped\n", second.compiled, second.skipped);
  if (second.compiled != 0) throw std::runtime_error("the shipped cache did not serve everything");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "shipped_cache");
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
