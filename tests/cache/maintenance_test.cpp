// SPDX-License-Identifier: Apache-2.0
// Store's maintenance functions (cache/maintenance.cpp).
#include <tilewright/store.h>

#include <sys/mount.h>

#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

TEST_CASE("verify finds every damaged row, and repair deletes it") {
  const std::string changes[] = {
      "UPDATE binaries SET image=zeroblob(100)",
      "UPDATE binaries SET key=hash",
      "UPDATE problems SET problem='other'",
      "UPDATE choices SET candidate='mma bm=1'",
      "UPDATE measurements SET microseconds=1",
      "UPDATE environments SET text='other'",
      "UPDATE uses SET sequence='x'",
      "UPDATE choices SET imported=1",
      "UPDATE measurements SET imported=1",
      "UPDATE builds SET kernel='other'",
      "DELETE FROM problems",
      "UPDATE binaries SET transcript=transcript||'more=1'||char(10)",
  };
  for (const std::string& change : changes) {
    CAPTURE(change);
    Directory dir;
    const std::string path = make_cache(dir);
    {
      Store store(options(path));
      const auto report = store.verify();
      CHECK(report.damaged.empty());
      CHECK(report.checked == 1 + 1 + 1 + 1 + 1 + 2 + 2);
    }
    Raw(path).exec(change);
    Store store(options(path));
    CHECK_FALSE(store.verify().damaged.empty());
    CHECK_FALSE(store.verify(true).damaged.empty());
    CHECK(store.verify().damaged.empty());
    CHECK(store.put_binary(binary_key(0), binary(0)));
    CHECK(store.find_binary(binary_key(0)));
  }
}

TEST_CASE("a structure damaged while open is rebuilt from what can be read") {
  Directory dir;
  const std::string path = make_cache(dir);
  {
    Store store(options(path));
    for (int i = 1; i < 300; ++i) store.put_binary(binary_key(i), binary(i, 30000));  // beyond the check on open
  }
  long root = 0;
  {
    Raw raw(path);
    root = raw.number("SELECT rootpage FROM sqlite_schema WHERE name='uses_sequence'");
  }
  std::string file = read_file(path);
  const auto at = static_cast<std::size_t>(root - 1) * 4096;
  for (std::size_t i = 0; i < 4096; ++i) file[at + i] = static_cast<char>(i * 7);
  write_file(path, file);
  Log log;
  Store store(options(path, &log));
  CHECK(store.find_binary(binary_key(3)));
  CHECK_FALSE(store.verify().damaged.empty());
  CHECK_FALSE(store.verify(true).damaged.empty());
  CHECK(store.verify().damaged.empty());
  CHECK(store.find_choice(device_key(), "gemm a"));
  CHECK(store.put_binary(binary_key(5), binary(5)));
  CHECK(exists(path + ".corrupt-1"));
}

TEST_CASE("gc evicts the oldest and gives the space back") {
  Directory dir;
  Store store(options(dir.file()));
  for (int i = 0; i < 100; ++i) store.put_binary(binary_key(i), binary(i));
  store.put_outcome(device_key(), "gemm a", outcome(64, 1), "driver=1\n");
  const auto before = std::filesystem::file_size(dir.file());
  const auto freed = store.gc(400 << 10);
  CHECK(freed > 0);
  CHECK(std::filesystem::file_size(dir.file()) <= (400 << 10));
  CHECK(std::filesystem::file_size(dir.file()) < before + 1);
  CHECK(store.find_binary(binary_key(99)));
  CHECK_FALSE(store.find_binary(binary_key(0)));
  CHECK(store.outcomes(device_key(), "gemm a").size() == 1);
  CHECK(store.gc(0) > 0);
  CHECK(store.list().empty());
  CHECK(store.put_binary(binary_key(1), binary(1)));
  CHECK_THROWS_AS(store.gc(-1), Error);
  CHECK(store.verify().damaged.empty());
}

TEST_CASE("an export is one file that can be shipped") {
  Directory dir;
  make_cache(dir);
  for (const bool binaries : {true, false}) {
    const std::string target = dir.file(binaries ? "with.db" : "without.db");
    {
      Store store(options(dir.file()));
      store.export_to(target, binaries);
      CHECK_THROWS_AS(store.export_to(target, binaries), Error);
      CHECK_THROWS_AS(store.export_to("/nonexistent/x.db"), Error);
    }
    CHECK(read_file(target)[18] == 1);
    CHECK_FALSE(exists(target + "-journal"));
    StoreOptions o = options("");
    Log log;
    o.shipped = {target};
    o.log = log.callback();
    Store store(o);
    CHECK(log.all() == "");
    CHECK(store.find_binary(binary_key(0)).has_value() == binaries);
    CHECK(store.find_choice(device_key(), "gemm a")->environment == "driver=580\ndate=2026-01-01\n");
    CHECK(store.outcomes(device_key(), "gemm a").size() == 1);
    CHECK(store.verify().damaged.empty());
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    CHECK(entry.path().string().find(".part") == std::string::npos);
  }
}

TEST_CASE("an export replaces a file only when told, and never half") {
  Directory dir;
  Store store(options(make_cache(dir)));
  const std::string target = dir.file("out.db");
  write_file(target, "something else");
  try {
    store.export_to(target);
    FAIL("exported over a file");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("--force") != std::string::npos);
  }
  CHECK(read_file(target) == "something else");
  for (const char* side : {"-wal", "-journal"}) {  // would be taken for the new file's
    write_file(target + side, "x");
    CHECK_THROWS_AS(store.export_to(target, true, true), Error);
    CHECK(read_file(target) == "something else");
    unlink((target + side).c_str());
  }
  CHECK_THROWS_AS(store.export_to(dir.file(), true, true), Error);  // the cache itself
  CHECK_THROWS_AS(store.export_to(dir.path(), true, true), Error);
  store.export_to(target, true, true);
  store.export_to(target, true, true);
  CHECK(Raw(target).number("SELECT count(*) FROM binaries") == 1);
  CHECK(store.find_binary(binary_key(0)));
}

TEST_CASE("a full disk at export names the target, and leaves what was there") {
  Directory dir;
  const std::string small = dir.path() + "/small";
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=256k,mode=0700") != 0) {
    WARN("SKIPPED: no right to mount a small file system");
    return;
  }
  Store store(options(dir.file()));
  for (int i = 0; i < 50; ++i) REQUIRE(store.put_binary(binary_key(i), binary(i)));
  write_file(small + "/out.db", "what was there");
  try {
    store.export_to(small + "/out.db", true, true);
    FAIL("600 KB fit into 256");
  } catch (const Error& error) {
    CHECK(error.field() == "export");
    CHECK(error.value() == small + "/out.db");
    CHECK(std::string(error.what()).find("full") != std::string::npos);
  }
  CHECK(read_file(small + "/out.db") == "what was there");
  CHECK(std::distance(std::filesystem::directory_iterator(small), {}) == 1);
  CHECK(umount2(small.c_str(), MNT_DETACH) == 0);
}

TEST_CASE("damaged rows are not exported") {
  Directory dir;
  const std::string path = make_cache(dir);
  Raw(path).exec("UPDATE binaries SET image=x'00'; UPDATE choices SET microseconds=1");
  Store(options(path)).export_to(dir.file("out.db"));
  CHECK(Raw(dir.file("out.db")).number("SELECT count(*) FROM binaries") == 0);
  CHECK(Raw(dir.file("out.db")).number("SELECT count(*) FROM choices") == 0);
  CHECK(Raw(dir.file("out.db")).number("SELECT count(*) FROM measurements") == 1);
}

TEST_CASE("maintenance says what it cannot do") {
  Directory dir;
  Store store(options(make_cache(dir)));
  CHECK_THROWS_AS(store.merge_from(dir.file()), Error);
  CHECK_THROWS_AS(store.merge_from(dir.file("absent.db")), Error);
  write_file(dir.file("garbage.db"), std::string(8192, 'x'));
  CHECK_THROWS_AS(store.merge_from(dir.file("garbage.db")), Error);
  CHECK(read_file(dir.file("garbage.db")).size() == 8192);
  Raw(dir.file("foreign.db")).exec("CREATE TABLE t(x)");
  CHECK_THROWS_AS(store.import_from(dir.file("foreign.db")), Error);
}
