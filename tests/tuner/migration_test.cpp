// SPDX-License-Identifier: Apache-2.0
// What commit 279095f stored in format version 2 (tests/cache/fixtures/README.md) decides today: no search, no
// compiler.
#include <filesystem>

#include "support/catch.h"
#include "support/paths.h"
#include "tuner/build/build.h"
#include "tuner/keys.h"
#include "tuner/task.h"
#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

std::string copy_of(const std::string& name, const TempDir& dir) {
  const std::string path = dir / name;
  std::filesystem::copy_file(paths::source_dir() + "/tests/cache/fixtures/" + name, path);
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return path;
}

StoreOptions with(const std::string& path) {
  StoreOptions o;
  o.path = path;
  return o;
}

}  // namespace

TEST_CASE("a row table of 279095f says what serves each number of rows", "[search_rows]") {
  if (!host_arch().cpu->vector_bytes) return;  // no x86-64-v3
  TempDir dir;
  const std::string path = copy_of("own.db", dir);
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}, .target = "x86-64-v3"});
  CandidateList table;
  {
    Store store(with(path));
    for (const auto& [key, list] : store.all_lists())
      if (!list.steps.empty()) table = list;
    REQUIRE(table.candidates.size() == 2);
    REQUIRE(store.put_list(tuner::rows_key(device), table));  // it was another CPU
  }
  const Engine engine(options(path));
  const Explanation found = engine.explanation(Problem::parse(table.problem), device.arch(), &device);
  REQUIRE(found.ranges.size() > 10);
  for (const RowRange& range : found.ranges) {
    CAPTURE(range.first, range.last);
    const std::int64_t last = range.last ? range.last : kMostStepRows + 1;
    for (int step = row_step(range.first); step <= row_step(last); ++step)
      CHECK(range.candidate == table.candidates[table.steps[static_cast<std::size_t>(step)]].candidate);
  }
  CHECK(engine.stats().compiled == 0);
  CHECK(engine.stats().measured == 0);
}

TEST_CASE("what 279095f compiled ahead is chosen where there is no compiler", "[engine]") {
  TempDir dir;
  const std::string path = copy_of("own.db", dir);
  const Problem problem = Problem::parse("transpose x=f16 rows=64 cols=64");
  Candidate last;
  {
    Store store(with(path));
    const auto list = store.find_list(tuner::prewarm_key(target()), problem.text());
    REQUIRE(list);
    REQUIRE(list->candidates.size() == 2);
    last = list->candidates.back().candidate;
    // Templates have changed since, so its kernels have other keys. Of today's only the last one's is there.
    CompileOptions compiler;
    compiler.nvrtc = options("").nvrtc;
    tuner::Log log;
    REQUIRE(
        tuner::Builder(store, compiler, log).build(tuner::source_of(problem, target(), last, ""), target()).compiled);
  }
  FakeGpu gpu;
  gpu.serve(problem, target());
  Options o = options(path);
  o.compile = false;
  Engine engine(o);
  CHECK(engine.prepare(problem, gpu.device()).candidate(problem.rows()) == last);
  CHECK(engine.stats().compiled == 0);
}

TEST_CASE("the compilers that 279095f noted are known where there are none", "[build]") {
  for (const std::string name : {"own.db", "exported.db"}) {
    TempDir dir;
    Store store(with(copy_of(name, dir)));
    CompileOptions none;
    none.nvrtc = "/nonexistent/libnvrtc.so.13", none.llvm = "/nonexistent/libLLVM.so";
    tuner::Log log;
    tuner::Builder builder(store, none, log);
    CHECK(builder.compiler(arch("sm_90a")) == "13.0 build 88");
    CHECK(builder.compiler(arch("x86-64-v3")) == "LLVM 19.1.7");
  }
}
