// SPDX-License-Identifier: Apache-2.0
// Store's maintenance functions (cache/maintenance.cpp).
#include <tilewright/store.h>
#include <tilewright/version.h>

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

namespace {

// Turns a byte of a key in the index's first leaf, found by the key's text.
void flip_in_index(const std::string& path, const std::string& index, const std::string& key) {
  long root = 0, page = 0;
  {
    Raw raw(path);
    raw.exec("PRAGMA journal_mode=DELETE");
    root = raw.number("SELECT rootpage FROM sqlite_schema WHERE name='" + index + "'");
    page = raw.number("PRAGMA page_size");
  }
  std::string file = read_file(path);
  const std::size_t begin = static_cast<std::size_t>(root - 1) * static_cast<std::size_t>(page);
  const std::size_t at = file.find(key, begin);
  REQUIRE(at < begin + static_cast<std::size_t>(page));
  file[at] = static_cast<char>(file[at] ^ 1);
  write_file(path, file);
}

}  // namespace

TEST_CASE("repair makes a damaged index anew and keeps every row") {
  for (const char* index : {"binaries_key", "uses_id"}) {
    CAPTURE(index);
    Directory dir;
    const std::string path = make_cache(dir);
    flip_in_index(path, index, binary_key(0).hash());
    Store store(options(path));
    CHECK_FALSE(store.find_binary(binary_key(0)).has_value() == (std::string(index) == "binaries_key"));
    if (std::string(index) == "binaries_key") REQUIRE(store.put_binary(binary_key(0), binary(0)));  // a second row
    CHECK_FALSE(store.verify().damaged.empty());
    CHECK_FALSE(store.verify(true).damaged.empty());
    CHECK(store.verify().damaged.empty());
    CHECK(store.find_binary(binary_key(0)));
    CHECK(store.find_choice(device_key(), "gemm a"));
    CHECK(store.list({.kind = "binary"}).size() == 1);
    CHECK_FALSE(exists(path + ".corrupt-1"));
  }
}

TEST_CASE("repair makes the indexes of lists anew, of two rows with one key keeping the last") {
  for (const char* index : {"lists_problem", "candidates_place"}) {
    CAPTURE(index);
    Directory dir;
    const std::string path = make_cache(dir);
    CandidateList list{"gemm l", {{candidate(64)}, {candidate(32)}}};
    std::string id;
    {
      Store store(options(path));
      REQUIRE(store.put_list(device_key(), list));
      id = store.list({.kind = "list"})[0].id;
    }
    flip_in_index(path, index, id);
    Store store(options(path));
    list.candidates.pop_back();
    (void)store.put_list(device_key(), list);  // perhaps second rows
    CHECK_FALSE(store.verify(true).damaged.empty());
    CHECK(store.verify().damaged.empty());
    if (!store.find_list(device_key(), "gemm l")) REQUIRE(store.put_list(device_key(), list));
    CHECK(store.find_list(device_key(), "gemm l")->candidates.size() == 1);
    CHECK_FALSE(exists(path + ".corrupt-1"));
  }
}

TEST_CASE("a write that meets a damaged index makes it anew") {
  Directory dir;
  const std::string path = make_cache(dir);
  {
    Raw raw(path);
    raw.exec("PRAGMA journal_mode=DELETE");
    raw.exec("UPDATE uses SET sequence=0x41424344 WHERE id='" + binary_key(0).hash() + "'");
  }
  flip_in_index(path, "uses_sequence", "ABCD");
  Log log;
  Store store(options(path, &log));
  CHECK(store.find_binary(binary_key(0)));  // marks its use, which the next store writes
  CHECK(store.put_binary(binary_key(1), binary(1)));
  CHECK(log.count("an index was damaged") == 1);
  CHECK(store.find_binary(binary_key(1)));
  CHECK(store.find_binary(binary_key(0)));
  CHECK(store.verify().damaged.empty());
  CHECK_FALSE(exists(path + ".corrupt-1"));
}

namespace {

Key of_version(const std::string& version, int n = 0) {
  return Key().add("kind", "binary").add("library", version).add("target", "sm_90a").add("n", n);
}
Key device_of_version(const std::string& version) {
  return Key().add("kind", "choice").add("device", "NVIDIA H200").add("library", version);
}

std::string make_old_cache(const Directory& dir, const std::string& name) {
  Store store(options(dir.file(name)));
  for (int i = 0; i < 3; ++i) store.put_binary(of_version("0.0.9", i), binary(i));
  store.put_choice(device_of_version("0.0.9"), choice("gemm a", 10));
  store.put_outcome(device_of_version("0.0.9"), "gemm a", outcome(64, 1), "driver=1\n");
  return dir.file(name);
}

}  // namespace

TEST_CASE("rows of another version are counted, told of once, and removed when asked") {
  Directory dir;
  const std::string path = make_old_cache(dir, "cache.db"), shipped = dir.file("shipped.db");
  Store(options(path)).export_to(shipped);
  Log log;
  StoreOptions o = options(path, &log);
  o.shipped = {shipped};
  Store store(o);
  CHECK(log.all().empty());
  CHECK_FALSE(store.find_binary(of_version(TILEWRIGHT_VERSION_STRING)));
  CHECK_FALSE(store.find_binary(of_version(TILEWRIGHT_VERSION_STRING)));
  CHECK(log.count("cache: " + path + ": 3 binaries, 1 choices and 1 measurements are of version 0.0.9") == 1);
  CHECK(log.count("cache gc --stale") == 1);
  CHECK(log.count("cache: " + shipped + ": 3 binaries") == 1);
  CHECK(log.count("export it again") == 1);
  CHECK(log.count() == 2);

  const auto others = store.other_versions();
  REQUIRE(others.size() == 2);
  CHECK(others[0].layer == path);
  CHECK(others[0].version == "0.0.9");
  CHECK(others[1].binaries == 3);
  REQUIRE(store.put_binary(of_version(TILEWRIGHT_VERSION_STRING), binary(7)));
  REQUIRE(store.put_binary(binary_key(1), binary(1)));  // whose key names no version
  REQUIRE(store.put_choice(device_of_version(TILEWRIGHT_VERSION_STRING), choice("gemm a", 10)));
  const std::int64_t all = 1 << 30;
  store.gc(all);
  CHECK(store.other_versions().size() == 2);
  store.gc(all, true);
  REQUIRE(store.other_versions().size() == 1);
  CHECK(store.other_versions()[0].layer == shipped);
  CHECK(Raw(path).number("SELECT count(*) FROM binaries") == 2);
  CHECK(Raw(path).number("SELECT count(*) FROM measurements") == 0);
  CHECK(store.find_choice(device_of_version(TILEWRIGHT_VERSION_STRING), "gemm a"));
  CHECK(store.find_binary(of_version(TILEWRIGHT_VERSION_STRING)));
  CHECK(store.verify().damaged.empty());
}
