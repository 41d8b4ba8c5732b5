// SPDX-License-Identifier: Apache-2.0
// A build machine without a GPU compiles for the machines a program will run on; the program ships the result beside
// itself, read-only, below whatever cache its user has. Here both happen in one process.
//
// usage: example_03_ship_a_cache FOLDER      (made if need be; only its owner may write there)
#include <tilewright/tilewright.h>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace tilewright;

namespace {

PrewarmReport prewarm(Options options, const std::vector<Problem>& asked) {
  Engine engine(std::move(options));
  PrewarmPolicy policy;
  policy.top = 2;
  policy.every_bucket = false;
  PrewarmReport all;
  for (const Arch* target : {&arch("sm_80"), &arch("sm_90a")}) {
    std::vector<Problem> problems;  // as a program asks for them there: with packed weights where that is faster
    for (const Problem& p : asked) problems.push_back(engine.packed(p, *target));
    const PrewarmReport report = engine.prewarm(problems, std::span(&target, 1), policy);
    all.compiled += report.compiled;
    all.skipped += report.skipped;
    if (report.failed || report.evicted) throw std::runtime_error("not every kernel was compiled and kept");
  }
  return all;
}

void run(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  const std::string shipped = (folder / "shipped.db").string();
  std::filesystem::remove(shipped);
  const std::string layer = " n=1024 k=1024 weights=constant workspace=34603008";
  const std::vector<Problem> problems = {Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1" + layer),
                                         Problem::parse("gemm x=f16 w=f16 y=f16 m=64" + layer)};

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
