// SPDX-License-Identifier: Apache-2.0
#include "cache/file/sqlite.h"
#include "cache/file/vfs_file.h"

#include <sqlite3.h>
#include <sys/mount.h>
#include <unistd.h>

#include "fault_vfs.h"
#include "scratch.h"
#include "support/catch.h"

using namespace scratch;
using namespace tilewright::cache;

namespace {

// Everything that a process does with a cache. Never throws, whatever fails below; what it finds is right.
void use(const std::string& path, Log* log) {
  Store store(options(path, log));
  for (int i = 0; i < 2; ++i) {
    const auto found = store.find_binary(binary_key(i));
    CHECK((!found || same(*found, binary(i))));
    const bool stored = store.put_binary(binary_key(i), binary(i));
    const auto again = store.find_binary(binary_key(i));
    CHECK((!again || same(*again, binary(i))));
    if (store.degraded() && stored) CHECK(again);
    store.put_choice(device_key(), choice("gemm a", 10));
    const auto known = store.find_choice(device_key(), "gemm a");
    CHECK((!known || known->microseconds == 10));
    store.put_outcome(device_key(), "gemm a", outcome(64, 10), "driver=580\n");
    (void)store.outcomes(device_key(), "gemm a");
    (void)store.choices(device_key(), "gemm");
  }
  store.touch_all();
}

// No trace of a fault remains: the next process stores and finds.
void check_recovered(const std::string& path) {
  Store store(options(path));
  CHECK_FALSE(store.degraded());
  CHECK(store.verify(true).damaged.empty());
  CHECK(store.put_binary(binary_key(7), binary(7)));
  CHECK(store.find_binary(binary_key(7)));
}

void check_no_other_files(const Directory& dir) {
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    CHECK((name == "cache.db" || name == "cache.db-lock" || name.rfind("cache.db.corrupt-", 0) == 0));
  }
}

// Fails the n-th operation for n = 0, 1, ... until a whole use gets by without one.
void sweep(unsigned operations, int code, bool sticky, bool existing, int stride) {
  fault::Vfs vfs;
  bool fired = true;
  int n = 0;
  for (; fired; n += stride) {
    CAPTURE(operations, code, sticky, existing, n);
    Directory dir;
    if (existing) make_cache(dir);
    Log log;
    vfs.arm(operations, n, code, sticky);
    use(dir.file(), &log);
    fired = vfs.fired();
    vfs.disarm();
    CHECK(log.count() <= 4);  // one for each kind of trouble
    check_recovered(dir.file());
    check_no_other_files(dir);
  }
  CHECK(n > stride);  // something did fail
}

}  // namespace

TEST_CASE("connections refuse what an untrusted file may try") {
  Directory dir;
  {
    Raw raw(dir.file());
    raw.exec(
        "CREATE TABLE t(x); CREATE VIEW v AS SELECT 1 AS x;"
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO t VALUES(99); END");
  }
  Database db(dir.file(), Database::Mode::read_write);
  CHECK_THROWS_AS(db.integer("SELECT x FROM v"), SqliteError);
  db.exec("INSERT INTO t VALUES(1)");
  CHECK(db.integer("SELECT count(*) FROM t") == 1);  // the trigger did not run
  CHECK_THROWS_AS(db.exec("SELECT load_extension('x')"), SqliteError);
  CHECK_THROWS_AS(db.exec("SELECT \"no such column\" FROM t"), SqliteError);
  CHECK_THROWS_AS(db.exec("PRAGMA writable_schema=1; UPDATE sqlite_schema SET sql=''"), SqliteError);
  CHECK_THROWS_AS(db.integer("SELECT length(zeroblob(100000000))"), SqliteError);
}

TEST_CASE("statements give values of the right type only") {
  Database db(":memory:", Database::Mode::memory);
  db.exec("CREATE TABLE t(x); INSERT INTO t VALUES(1),(2.5),('a'),(x'00'),(NULL)");
  Statement rows = db.prepare("SELECT x FROM t ORDER BY rowid");
  REQUIRE(rows.step());
  CHECK(rows.integer(0) == 1);
  CHECK_THROWS_AS(rows.text(0), BadValue);
  REQUIRE(rows.step());
  CHECK(rows.real(0) == 2.5);
  CHECK_THROWS_AS(rows.integer(0), BadValue);
  REQUIRE(rows.step());
  CHECK(rows.text(0) == "a");
  CHECK_THROWS_AS(rows.bytes(0), BadValue);
  REQUIRE(rows.step());
  CHECK(rows.bytes(0).size() == 1);
  REQUIRE(rows.step());
  CHECK_THROWS_AS(rows.real(0), BadValue);
  CHECK_FALSE(rows.step());
}

TEST_CASE("a transaction that is not committed leaves nothing") {
  Database db(":memory:", Database::Mode::memory);
  db.exec("CREATE TABLE t(x)");
  {
    Transaction transaction(db);
    db.exec("INSERT INTO t VALUES(1)");
  }
  CHECK(db.integer("SELECT count(*) FROM t") == 0);
  Transaction transaction(db);
  db.exec("INSERT INTO t VALUES(1)");
  transaction.commit();
  CHECK(db.integer("SELECT count(*) FROM t") == 1);
}

TEST_CASE("waiting for a lock and long statements end at the deadline") {
  Directory dir;
  Raw raw(dir.file());
  raw.exec("CREATE TABLE t(x); BEGIN EXCLUSIVE");
  Database db(dir.file(), Database::Mode::read_write);
  db.set_deadline(Clock::now() + std::chrono::milliseconds(100));
  try {
    db.exec("INSERT INTO t VALUES(1)");
    FAIL("the lock was not seen");
  } catch (const SqliteError& error) {
    CHECK(error.busy());
  }
  raw.exec("COMMIT");
  db.set_deadline(Clock::now() + std::chrono::milliseconds(100));
  CHECK_THROWS_AS(db.exec("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n"),
                  SqliteError);
  CHECK(Clock::now() < Clock::now() + std::chrono::seconds(5));
}

TEST_CASE("a full disk at any write degrades to memory and leaves no damage") {
  sweep(fault::kWrite | fault::kTruncate, SQLITE_FULL, true, false, 1);
  sweep(fault::kWrite | fault::kTruncate, SQLITE_FULL, true, true, 1);
}

TEST_CASE("a store whose disk is full says so, not that it is read-only") {
  Directory dir;
  Log log;
  fault::Vfs vfs;
  Store full(options(dir.file("full.db"), &log));
  CHECK(full.put_binary(binary_key(1), binary(1)));
  CHECK(full.unwritable() == "");
  vfs.arm(fault::kWrite | fault::kTruncate, 0, SQLITE_FULL, true);
  CHECK(full.put_binary(binary_key(2), binary(2)));  // in memory
  CHECK(full.degraded());
  INFO(full.unwritable());
  CHECK(full.unwritable().find("full.db cannot be written") != std::string::npos);
  CHECK(full.unwritable().find("full (SQLite") != std::string::npos);
  CHECK(full.unwritable().find("read-only") == std::string::npos);
}

TEST_CASE("no room for the shared memory of a new file") {
  sweep(fault::kShmMap, SQLITE_IOERR_SHMSIZE, true, false, 1);
  sweep(fault::kShmMap, SQLITE_IOERR_SHMSIZE, true, true, 1);
}

TEST_CASE("any operation that fails once is a miss at most") {
  sweep(fault::kRead, SQLITE_IOERR_READ, false, true, 3);
  sweep(fault::kRead, SQLITE_IOERR_SHORT_READ, false, true, 3);
  sweep(fault::kWrite, SQLITE_IOERR_WRITE, false, true, 3);
  sweep(fault::kSync, SQLITE_IOERR_FSYNC, false, false, 2);
  sweep(fault::kShmLock, SQLITE_BUSY, false, true, 7);
  sweep(fault::kLock, SQLITE_IOERR_LOCK, false, true, 1);
  sweep(fault::kOpen, SQLITE_CANTOPEN, false, true, 1);
  sweep(fault::kAll, SQLITE_NOMEM, false, true, 11);
}

TEST_CASE("a full file system, a real one") {
  Directory dir;
  const std::string small = dir.path() + "/small";
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=512k,mode=0700") != 0) {
    WARN("SKIPPED: no right to mount a small file system; the cases above simulate it");
    return;
  }
  Log log;
  write_file(small + "/ballast", std::string(300000, 'x'));
  int stored = 0;
  {
    Store store(options(small + "/cache.db", &log));
    for (int i = 0; i < 100; ++i) {
      CHECK(store.put_binary(binary_key(i), binary(i)));
      CHECK(same(*store.find_binary(binary_key(i)), binary(i)));
    }
    CHECK(store.degraded());
    CHECK(log.count() == 1);
  }
  unlink((small + "/ballast").c_str());
  {
    Store store(options(small + "/cache.db", &log));
    CHECK_FALSE(store.degraded());
    for (int i = 0; i < 100; ++i) stored += store.find_binary(binary_key(i)).has_value();
    CHECK(store.put_binary(binary_key(200), binary(200)));
    CHECK(store.verify().damaged.empty());
    CHECK(log.count() == 1);
  }
  CHECK(stored < 100);
  write_file(small + "/ballast", std::string(600000, 'x'));
  Store full(options(small + "/other.db", &log));
  CHECK(full.degraded());
  CHECK(full.put_binary(binary_key(1), binary(1)));
  CHECK(full.find_binary(binary_key(1)));
  CHECK(umount2(small.c_str(), MNT_DETACH) == 0);
}

TEST_CASE("a statement that is used again starts anew, and two of one text are apart") {
  Database db("", Database::Mode::memory);
  db.exec("CREATE TABLE t(a)");
  const char* insert = "INSERT INTO t VALUES(?)";
  db.prepare(insert).bind(1, std::int64_t{5}).run();
  db.prepare(insert).run();  // binds nothing: NULL, not 5
  CHECK(db.integer("SELECT count(*) FROM t WHERE a IS NULL") == 1);
  const char* select = "SELECT a FROM t ORDER BY a IS NULL";
  {
    Statement first = db.prepare(select), second = db.prepare(select);
    REQUIRE(first.step());
    REQUIRE(second.step());
    CHECK(first.integer(0) == 5);
    REQUIRE(second.step());
    CHECK_THROWS_AS(second.integer(0), BadValue);
    CHECK(first.integer(0) == 5);
  }
  Statement again = db.prepare(select);
  REQUIRE(again.step());
  CHECK(again.integer(0) == 5);
  db.exec("ALTER TABLE t ADD COLUMN b DEFAULT 7");
  CHECK(db.integer("SELECT count(b) FROM t") == 2);
  CHECK(db.integer("SELECT count(b) FROM t") == 2);
}

TEST_CASE("a statement that failed is compiled anew") {
  Database db("", Database::Mode::memory);
  db.exec("CREATE TABLE t(a UNIQUE)");
  const char* insert = "INSERT INTO t VALUES(?)";
  db.prepare(insert).bind(1, std::int64_t{5}).run();
  CHECK_THROWS_AS(db.prepare(insert).bind(1, std::int64_t{5}).run(), SqliteError);
  CHECK_NOTHROW(db.prepare(insert).bind(1, std::int64_t{6}).run());
  CHECK(db.integer("SELECT count(*) FROM t") == 2);
}
