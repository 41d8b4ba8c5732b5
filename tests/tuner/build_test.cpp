// SPDX-License-Identifier: Apache-2.0
#include "tuner/build/build.h"

#include <fstream>
#include <iterator>
#include <thread>

#include <tilewright/family.h>

#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::tuner;
using test::error_of;

namespace {

struct Rig {
  explicit Rig(const std::string& path) : store(with(path)), builder(store, compiler(), log) {}
  static StoreOptions with(const std::string& path) {
    StoreOptions o;
    o.path = path;
    return o;
  }
  static CompileOptions compiler() {
    CompileOptions c;
    c.nvrtc = test::options("").nvrtc;
    return c;
  }
  Log log;
  Store store;
  Builder builder;
};

// The same binary under the key of another NVRTC, as its owner would have stored it.
void store_as(Store& store, const Key& key, const std::string& compiler, const Binary& binary) {
  Key other;
  for (const auto& [tag, value] : key.fields()) other.add(tag, tag == "compiler" ? compiler : value);
  REQUIRE(store.put_binary(other, binary));
}

Source sample(int v = 0) { return test::toy_task(1).source(test::toy(v)); }

}  // namespace

TEST_CASE("a binary is compiled once, then comes from memory, then from the store", "[build]") {
  test::TempDir dir;
  std::vector<std::byte> image;
  {
    Rig rig(dir / "c.db");
    Built first = rig.builder.build(sample(), arch("sm_90a"));
    CHECK(first.compiled);
    CHECK(first.seconds > 0);
    CHECK_FALSE(rig.builder.build(sample(), arch("sm_90a")).compiled);
    CHECK(rig.builder.compiled() == 1);
    CHECK(rig.builder.cache_hits() == 0);
    CHECK(rig.builder.build(sample(), arch("sm_80")).compiled);
    image = first.binary->image;
  }
  Rig second(dir / "c.db");
  Built found = second.builder.build(sample(), arch("sm_90a"));
  CHECK_FALSE(found.compiled);
  CHECK(found.binary->image == image);
  CHECK(second.builder.compiled() == 0);
  CHECK(second.builder.cache_hits() == 1);
}

TEST_CASE("threads that want one binary share one compilation", "[build]") {
  Rig rig("");
  std::vector<std::thread> threads;
  std::atomic<int> compiled{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] { compiled += rig.builder.build(sample(), arch("sm_90a")).compiled; });
  for (auto& t : threads) t.join();
  CHECK(compiled == 1);
  CHECK(rig.builder.compiled() == 1);
}

TEST_CASE("a compile error reaches everyone who waits and is not remembered", "[build]") {
  Rig rig("");
  int calls = 0;
  auto broken = [&](const Source& s, const Arch& a) -> Binary {
    ++calls;
    throw CompileError(s.name, a.name, "", s.text, "no");
  };
  for (int i = 0; i < 2; ++i)
    error_of(ErrorCode::compile_failed, [&] { rig.builder.build(sample(), arch("sm_90a"), broken); });
  CHECK(calls == 2);
  CHECK(rig.builder.build(sample(), arch("sm_90a")).compiled);
}

TEST_CASE("a store that was filled elsewhere serves a machine without a compiler", "[build]") {
  test::TempDir dir;
  {
    Rig rig(dir / "c.db");
    rig.builder.build(sample(), arch("sm_90a"));
  }
  Log log;
  CompileOptions same = Rig::compiler();
  {
    Store store(Rig::with(dir / "c.db"));  // closed again: a store that somebody writes cannot be a shipped one
    const auto noted = store.find_compiler("nvrtc");
    REQUIRE(noted);
    CHECK(noted->version == compiler_version(same));
    CHECK(noted->path == compiler_info(same).path);
    store.export_to(dir / "shipped.db");
    std::ifstream file(dir / "shipped.db", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    CHECK(test::mentions(bytes, compiler_version(same)));
    CHECK_FALSE(test::mentions(bytes, compiler_info(same).path));  // says who made it
    CHECK(Builder(store, same, log).compiler(arch("sm_90a")) == compiler_version(same));
  }

  Store user;
  StoreOptions layered;
  layered.shipped = {dir / "c.db"};
  Store shipped(layered);
  CompileOptions none;
  none.nvrtc = "/nonexistent/libnvrtc.so.13";
  Builder lost(user, none, log);
  error_of(ErrorCode::library_missing, [&] { lost.build(sample(), arch("sm_90a")); });
  Builder served(shipped, none, log);
  CHECK_FALSE(served.build(sample(), arch("sm_90a")).compiled);
}

TEST_CASE("without a compiler, the error names stores that another version filled", "[build]") {
  test::TempDir dir;
  {
    Store old(Rig::with(dir / "old.db"));
    Binary binary;
    binary.target = "sm_90a", binary.entry = "e", binary.image.resize(10);
    binary.plan = {{1, 0, 0}, {1, 0, 0}, {1, 0, 0}, 32, 1, 0};
    REQUIRE(old.put_binary(Key().add("kind", "binary").add("library", "0.0.9"), binary));
  }
  Log log;
  StoreOptions layered;
  layered.shipped = {dir / "old.db"};
  Store store(layered);
  CompileOptions none;
  none.nvrtc = "/nonexistent/libnvrtc.so.13";
  Builder builder(store, none, log);
  const Error error = error_of(ErrorCode::library_missing, [&] { builder.build(sample(), arch("sm_90a")); });
  CHECK(test::mentions(error.what(), none.nvrtc));
  CHECK(test::mentions(error.what(), dir / "old.db: 1 binaries"));
  CHECK(test::mentions(error.what(), "version 0.0.9"));
}

TEST_CASE("a build by another NVRTC serves where the driver loads it, the newest first", "[build]") {
  test::FakeGpu gpu;
  const Device device = gpu.device();
  const Arch& target = arch("sm_90a");
  Rig rig("");
  Binary binary = *rig.builder.build(sample(), target).binary;
  const Key key = rig.builder.key(sample(), target);
  std::vector<std::string> lines;
  Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  Store store;
  binary.log = "older";
  store_as(store, key, "12.8 build 1", binary);
  binary.log = "newer";
  store_as(store, key, "13.5 build 2", binary);
  {
    Builder builder(store, Rig::compiler(), log);
    CHECK_FALSE(builder.find(key));
    const Built built = builder.build(sample(), target, &device);
    CHECK_FALSE(built.compiled);
    CHECK(built.binary->log == "newer");
    CHECK(builder.build(sample(), target, &device).binary == built.binary);  // from memory now
    CHECK(builder.compiled() == 0);
    REQUIRE(lines.size() == 1);
    CHECK(test::mentions(lines[0], "13.5 build 2"));
  }
  {
    Builder builder(store, Rig::compiler(), log);
    fake_cuda_fail("cuModuleLoadData", 1, 222);  // an image newer than the driver
    CHECK(builder.build(sample(), target, &device).binary->log == "older");
  }
  {
    lines.clear();
    Builder builder(store, Rig::compiler(), log);
    for (int refused = 0; refused < 2; ++refused) fake_cuda_fail("cuModuleLoadData", 1, 222);
    CHECK(builder.build(sample(), target, &device).compiled);
    REQUIRE(lines.size() == 3);  // two that were refused, with the driver's reason, and the compilation
    CHECK(test::mentions(lines[0], "222"));
    CHECK(test::mentions(lines[2], "compiled in"));
  }
}

TEST_CASE("a build by another NVRTC serves the kernels of operations, whose constants are a second parameter",
          "[build]") {
  test::FakeGpu gpu;
  const Device device = gpu.device();
  const Arch& target = arch("sm_90a");
  Rig rig("");
  for (const char* text : {"gemm x=f32 w=q4_0 y=f32 m=1 n=64 k=64", "cast x=f32 y=q8_1 rows=4 cols=64"}) {
    const Problem problem = Problem::parse(text);
    const Family& first = *families(problem.op()).back();
    const Source source = first.source(problem, target, first.candidates(problem, target).front());
    Store store;
    store_as(store, rig.builder.key(source, target), "13.5 build 2", *rig.builder.build(source, target).binary);
    CompileOptions none;
    none.nvrtc = "/nonexistent/libnvrtc.so.13";
    Builder builder(store, none, rig.log);
    CHECK_FALSE(builder.build(source, target, &device).compiled);
  }
}

TEST_CASE("with same_nvrtc, and ahead of time, each NVRTC compiles its own", "[build]") {
  test::FakeGpu gpu;
  const Device device = gpu.device();
  const Arch& target = arch("sm_90a");
  Rig rig("");
  const Binary binary = *rig.builder.build(sample(), target).binary;
  Store store;
  store_as(store, rig.builder.key(sample(), target), "13.5 build 2", binary);
  Log log;
  CHECK(Builder(store, Rig::compiler(), log).build(sample(), target).compiled);  // no device: prewarm()
  Store second;
  store_as(second, rig.builder.key(sample(), target), "13.5 build 2", binary);
  CHECK(Builder(second, Rig::compiler(), log, true).build(sample(), target, &device).compiled);
}

TEST_CASE("a build by another NVRTC serves a machine without any", "[build]") {
  test::FakeGpu gpu;
  const Device device = gpu.device();
  Rig rig("");
  const Binary binary = *rig.builder.build(sample(), arch("sm_90a")).binary;
  Store store;
  store_as(store, rig.builder.key(sample(), arch("sm_90a")), "13.5 build 2", binary);
  CompileOptions none;
  none.nvrtc = "/nonexistent/libnvrtc.so.13";
  Log log;
  Builder builder(store, none, log);
  CHECK(builder.build(sample(), arch("sm_90a"), &device).binary->image == binary.image);
  Builder strict(store, none, log, true);
  error_of(ErrorCode::library_missing, [&] { strict.build(sample(), arch("sm_90a"), &device); });
}

TEST_CASE("what is unacceptable in a binary", "[build]") {
  Resources r;
  CHECK(unacceptable(r).empty());
  r.stack_bytes = 64;
  CHECK(unacceptable(r).empty());
  r.spill_bytes = 8;
  CHECK(test::mentions(unacceptable(r), "8 bytes"));
  r = {};
  r.serialized = true;
  CHECK(test::mentions(unacceptable(r), "wgmma"));
}
