// SPDX-License-Identifier: Apache-2.0
#include "cache/file/open.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "cache/file/schema.h"
#include "child.h"
#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

namespace {

// A store at `path` starts empty and works, and the damaged file is kept under the given number.
void check_quarantined(const std::string& path, int number) {
  Log log;
  {
    Store store(options(path, &log));
    CAPTURE(log.all());
    CHECK_FALSE(store.degraded());
    CHECK(store.unread().empty());
    CHECK(log.count() == 1);
    CHECK(log.count(path) == 1);
    CHECK_FALSE(store.find_binary(binary_key(0)));
    CHECK(store.put_binary(binary_key(0), binary(0)));
    CHECK(store.find_binary(binary_key(0)));
  }
  CHECK(exists(path + ".corrupt-" + std::to_string(number)));
  CHECK_FALSE(exists(path + ".corrupt-" + std::to_string(number - 1)));
  Store again(options(path));
  CHECK(again.find_binary(binary_key(0)));
}

// The file is not used and not changed; the process goes on in memory after one warning.
void check_left_alone(const std::string& path) {
  Log log;
  const std::string before = read_file(path);
  {
    Store store(options(path, &log));
    CHECK(store.degraded());
    CHECK(log.count() == 1);
    CHECK(log.count(path) == 1);
    REQUIRE(store.unread().size() == 1);
    CHECK(store.unread()[0].find(path) != std::string::npos);
    CHECK_FALSE(store.find_binary(binary_key(0)));
    CHECK(store.put_binary(binary_key(0), binary(0)));
    CHECK(store.find_binary(binary_key(0)));
    CHECK_THROWS_AS(store.gc(0), Error);
    CHECK(store.verify().damaged.size() == 1);
  }
  CHECK((read_file(path) == before));  // in brackets, so that a failure does not print the file
  CHECK_FALSE(exists(path + ".corrupt-1"));
}

}  // namespace

TEST_CASE("truncated file is quarantined") {
  for (const double part : {-1.0, 0.3, 0.99}) {
    Directory dir;
    const std::string path = make_cache(dir);
    const std::string whole = read_file(path);
    const auto size = part < 0 ? 62 : static_cast<off_t>(static_cast<double>(whole.size()) * part);
    CAPTURE(size);
    REQUIRE(truncate(path.c_str(), size) == 0);
    check_quarantined(path, 1);
  }
}

TEST_CASE("garbage is quarantined, and only the latest is kept") {
  Directory dir;
  const std::string path = make_cache(dir);
  write_file(path + "-lock", "");  // a store that compiled leaves it; without it the file may be anybody's
  std::mt19937 random(3);
  for (int number = 1; number <= 3; ++number) {
    std::string garbage(8192, ' ');
    for (char& c : garbage) c = static_cast<char>(random());
    write_file(path, garbage);
    check_quarantined(path, number);
  }
}

TEST_CASE("an empty file is an empty cache") {
  Directory dir;
  Log log;
  write_file(dir.file(), "");
  Store store(options(dir.file(), &log));
  CHECK_FALSE(store.degraded());
  CHECK(store.put_binary(binary_key(0), binary(0)));
  CHECK(log.all() == "");
  CHECK_FALSE(exists(dir.file() + ".corrupt-1"));
}

TEST_CASE("a file that never was a cache is left alone") {
  Directory dir;
  write_file(dir.file("thesis.txt"), "A thesis, of which there is one copy.");
  check_left_alone(dir.file("thesis.txt"));
  write_file(dir.file("long.txt"), std::string(8192, 'a'));
  check_left_alone(dir.file("long.txt"));
}

TEST_CASE("a file that was never written back is zeros, and is quarantined") {
  Directory dir;
  write_file(dir.file(), std::string(8192, '\0'));
  check_quarantined(dir.file(), 1);
}

TEST_CASE("a database of another application is left alone") {
  Directory dir;
  Raw(dir.file("a.db")).exec("PRAGMA application_id=7; CREATE TABLE binaries(x); INSERT INTO binaries VALUES(1)");
  check_left_alone(dir.file("a.db"));
  Raw(dir.file("b.db")).exec("CREATE TABLE t(x)");  // one without an id
  check_left_alone(dir.file("b.db"));
  Raw(dir.file("c.db")).exec("PRAGMA journal_mode=WAL; PRAGMA application_id=7; CREATE TABLE t(x)");
  check_left_alone(dir.file("c.db"));
}

TEST_CASE("a newer version is left alone") {
  Directory dir;
  const std::string path = make_cache(dir);
  Raw(path).exec("PRAGMA user_version=99; PRAGMA journal_mode=DELETE");
  check_left_alone(path);
  // The same when the version is so far only in the write-ahead log.
  const std::string other = make_cache(dir, "other.db");
  Raw raw(other);
  raw.exec("PRAGMA user_version=99");
  Log log;
  Store store(options(other, &log));
  CHECK(store.degraded());
  CHECK(raw.number("PRAGMA user_version") == 99);
}

TEST_CASE("a schema that is not ours is quarantined and none of it runs") {
  const char* changes[] = {
      "ALTER TABLE binaries RENAME TO b2; CREATE VIEW binaries AS SELECT * FROM b2",
      "CREATE TRIGGER t AFTER INSERT ON binaries BEGIN DELETE FROM binaries; END",
      "DROP TABLE environments; CREATE TABLE environments(hash TEXT PRIMARY KEY,text TEXT NOT NULL) WITHOUT ROWID",
      "ALTER TABLE choices ADD COLUMN extra",
      "CREATE INDEX extra ON binaries(length(image))",
      "CREATE TABLE extra(x)",
      "DROP INDEX binaries_key",
      "DROP TABLE uses",
      "ALTER TABLE binaries ADD COLUMN c INTEGER DEFAULT 1 CHECK(abs(c)>0)",
      "PRAGMA writable_schema=1; UPDATE sqlite_schema SET sql=replace(sql,'TEXT','text') WHERE name='problems'",
      "PRAGMA writable_schema=1; UPDATE sqlite_schema SET name=x'00' WHERE name='uses_id'",
  };
  for (const char* change : changes) {
    CAPTURE(change);
    Directory dir;
    const std::string path = make_cache(dir);
    Raw(path).exec(std::string("PRAGMA journal_mode=DELETE;") + change);
    check_quarantined(path, 1);
  }
}

// ---- directories that only readers may use

static child::Work reader_work("reader", [](const child::Arguments& a) {
  // Arguments: path, "degraded" or "served", expected number of warnings.
  Log log;
  Store store(options(a[0], &log));
  const bool found = store.find_binary(binary_key(0)).has_value();
  const bool stored = store.put_binary(binary_key(1), binary(1));
  if (log.count() != std::stoi(a[2])) return 2;
  if (a[1] == "degraded") return store.degraded() && !found && stored ? 0 : 1;
  const bool hit =
      found && store.find_choice(device_key(), "gemm a") && store.outcomes(device_key(), "gemm a").size() == 1;
  return !store.degraded() && hit && !stored ? 0 : 1;
});

namespace {

// Reads as a user who cannot write there.
void check_reader(const std::string& path, const std::string& outcome, int warnings) {
  CAPTURE(path, outcome);
  CHECK(child::run("reader", {path, outcome, std::to_string(warnings)}, child::is_root() ? child::kNobody : 0) == 0);
}

}  // namespace

TEST_CASE("a read-only directory serves hits") {
  for (const char* mode : {"WAL", "DELETE"}) {
    Directory dir;
    const std::string path = make_cache(dir);
    Raw(path).exec(std::string("PRAGMA journal_mode=") + mode);
    const std::string before = read_file(path);
    CHECK(before[18] == (mode[0] == 'W' ? 2 : 1));
    chmod(path.c_str(), 0444);
    chmod(dir.path().c_str(), 0555);
    check_reader(path, "served", 0);
    CHECK(read_file(path) == before);
    chmod(dir.path().c_str(), 0755);
  }
}

TEST_CASE("a read-only directory with a hot write-ahead log is not read") {
  Directory dir;
  const std::string path = make_cache(dir);
  Raw writer(path);
  writer.exec("CREATE TABLE t(x); DROP TABLE t");
  REQUIRE(exists(path + "-wal"));
  for (const char* side : {"", "-wal", "-shm"}) chmod((path + side).c_str(), 0444);
  chmod(dir.path().c_str(), 0555);
  check_reader(path, "degraded", 1);
  chmod(dir.path().c_str(), 0755);
}

TEST_CASE("a read-only mount serves hits") {
  Directory dir;
  const std::string mounted = dir.path() + "/mounted";
  mkdir(mounted.c_str(), 0700);
  Directory source;
  make_cache(source);
  chmod(source.path().c_str(), 0755);
  chmod(source.file().c_str(), 0644);
  if (mount(source.path().c_str(), mounted.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    WARN("SKIPPED: no right to mount; a directory without write permission is tested above");
    return;
  }
  chmod(dir.path().c_str(), 0755);
  REQUIRE(mount(nullptr, mounted.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0);
  CHECK(child::run("reader", {mounted + "/cache.db", "served", "0"}) == 0);  // as root: only the mount forbids it
  CHECK(umount(mounted.c_str()) == 0);
}

TEST_CASE("a store opened for look-ups changes nothing") {
  Directory dir;
  const std::string path = make_cache(dir);
  const std::string before = read_file(path);
  StoreOptions o = options(path);
  o.read_only = true;
  {
    Store store(o);
    CHECK(store.find_binary(binary_key(0)));
    CHECK_FALSE(store.put_binary(binary_key(1), binary(1)));
    CHECK_FALSE(store.degraded());
    CHECK_THROWS_AS(store.gc(0), Error);
  }
  CHECK(read_file(path) == before);
  Log log;
  o = options(dir.file("absent.db"), &log);
  o.read_only = true;
  Store store(o);
  CHECK_FALSE(store.find_binary(binary_key(0)));
  CHECK_FALSE(exists(dir.file("absent.db")));
  CHECK(log.all() == "");
}

TEST_CASE("a store opened for look-ups judges the directory of a file that is not there yet") {
  Directory dir;
  StoreOptions o = options(dir.file("absent.db"));
  o.read_only = true;
  CHECK_FALSE(Store(o).degraded());
  o.path = dir.file("no/such/directory.db");
  CHECK_FALSE(Store(o).degraded());
  REQUIRE(::chmod(dir.path().c_str(), 0777) == 0);
  Log log;
  o = options(dir.file("absent.db"), &log);
  o.read_only = true;
  CHECK(Store(o).degraded());
  CHECK(log.all().find("writable by everybody") != std::string::npos);
}

TEST_CASE("shipped stores are searched below the user's own, first wins") {
  Directory dir;
  const auto ship = [&](const std::string& name, int key, double microseconds) {
    Store store(options(dir.file(name)));
    store.put_binary(binary_key(key), binary(key));
    store.put_binary(binary_key(9), binary(key));
    store.put_choice(device_key(), choice("gemm a", microseconds));
    store.put_choice(device_key(), choice("gemm " + name, microseconds));
    store.put_outcome(device_key(), "gemm a", outcome(key, microseconds), "");
  };
  ship("one.db", 1, 10);
  ship("two.db", 2, 20);
  Log log;
  StoreOptions o = options(dir.file("own.db"), &log);
  o.shipped = {dir.file("one.db"), dir.file("two.db"), dir.file("absent.db")};
  Store store(o);
  CHECK(log.count("absent.db") == 1);
  CHECK(log.count() == 1);
  CHECK(store.unread() == std::vector<std::string>{dir.file("absent.db") + " does not exist"});
  CHECK(store.find_binary(binary_key(1)));
  CHECK(store.find_binary(binary_key(2)));
  CHECK(same(*store.find_binary(binary_key(9)), binary(1)));
  CHECK(store.find_choice(device_key(), "gemm a")->microseconds == 10);
  CHECK(store.choices(device_key(), "gemm ").size() == 3);
  CHECK(store.outcomes(device_key(), "gemm a").size() == 2);
  CHECK(store.put_choice(device_key(), choice("gemm a", 30)));
  CHECK(store.find_choice(device_key(), "gemm a")->microseconds == 30);
  CHECK(store.put_binary(binary_key(9), binary(7)));
  CHECK(same(*store.find_binary(binary_key(9)), binary(7)));
}
