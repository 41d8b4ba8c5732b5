// SPDX-License-Identifier: Apache-2.0
#include "tuner/build.h"

#include <thread>

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
    auto row = store.find_choice(Key().add("kind", "compiler").add("library", kLibraryVersion), "compiler");
    REQUIRE(row);
    CHECK(test::mentions(row->environment, compiler_version(same)));
    CHECK(Builder(store, same, log).compiler() == compiler_version(same));
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
