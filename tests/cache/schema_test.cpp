// SPDX-License-Identifier: Apache-2.0
#include "cache/file/schema.h"

#include <signal.h>
#include <unistd.h>

#include "child.h"
#include "scratch.h"
#include "support/catch.h"

using namespace scratch;
using namespace tilewright::cache;

namespace {

// A later version of the format, for the tests: one more index.
void second_step(Database& db) { db.exec("CREATE INDEX later ON choices(candidate)"); }
void killed_step(Database& db) {
  second_step(db);
  kill(getpid(), SIGKILL);
}

std::vector<Migration> with(Migration last) {
  std::vector<Migration> steps(migrations().begin(), migrations().end());
  steps.push_back(last);
  return steps;
}

}  // namespace

TEST_CASE("an empty database becomes ours, and ours stays as it is") {
  Database db(":memory:", Database::Mode::memory);
  CHECK(adopt(db) == Fit::ours);
  CHECK(adopt(db) == Fit::ours);
  CHECK(inspect(db) == Fit::ours);
  CHECK(db.integer("PRAGMA user_version") == schema_version());
  CHECK(db.integer("PRAGMA application_id") == kApplicationId);
}

TEST_CASE("the hash that every opening compares with is that of what the migrations make") {
  CHECK(made_schema_hash() == kSchemaHash);
}

TEST_CASE("every difference in the schema is seen") {
  for (const char* change : {"CREATE TABLE t(x)", "DROP INDEX uses_id", "ALTER TABLE uses ADD COLUMN x",
                             "CREATE VIEW v AS SELECT 1", "DROP TABLE choices"}) {
    CAPTURE(change);
    Database db(":memory:", Database::Mode::memory);
    REQUIRE(adopt(db) == Fit::ours);
    db.exec(change);
    CHECK(inspect(db) == Fit::damaged);
  }
}

TEST_CASE("an older version is migrated with its rows") {
  Directory dir;
  const std::string path = make_cache(dir);
  {
    Database db(path, Database::Mode::read_write);
    CHECK(inspect(db, with(second_step)) == Fit::older);
    CHECK(adopt(db, with(second_step)) == Fit::ours);
    CHECK(db.integer("PRAGMA user_version") == schema_version() + 1);
    CHECK(db.integer("SELECT count(*) FROM sqlite_schema WHERE name='later'") == 1);
    CHECK(db.integer("SELECT count(*) FROM binaries") == 1);
  }
  Store store(options(path));
  CHECK(store.degraded());  // for this library the file is now a newer one
}

namespace {

// A file as version 1 wrote it, with the rows of make_cache().
std::string make_version_1(const Directory& dir) {
  const std::string path = dir.file("old.db");
  write_file(path, "");
  {
    Database db(path, Database::Mode::read_write);
    REQUIRE(adopt(db, migrations().first(1)) == Fit::ours);
  }
  make_cache(dir, "new.db");
  Raw raw(path);
  raw.exec("ATTACH '" + dir.file("new.db") + "' AS new");
  for (const std::string table : {"problems", "choices", "measurements", "binaries", "environments", "uses"}) {
    const std::string columns = raw.text("SELECT group_concat(name) FROM pragma_table_info('" + table + "','main')");
    raw.exec("INSERT INTO main." + table + "(" + columns + ") SELECT " + columns + " FROM new." + table);
  }
  return path;
}

void check_rows(Store& store) {
  CHECK(same(*store.find_binary(binary_key(0)), binary(0)));
  CHECK(store.find_choice(device_key(), "gemm a")->microseconds == 10);
  CHECK_FALSE(store.find_choice(device_key(), "gemm a")->imported);
  CHECK(store.outcomes(device_key(), "gemm a").size() == 1);
  CHECK(store.other_builds(Key(binary_key(0)).add("compiler", "nvrtc 1")).size() == 1);
  CHECK(store.verify().damaged.empty());
}

}  // namespace

TEST_CASE("a file of version 1 is brought up to date with its rows") {
  Directory dir;
  const std::string path = make_version_1(dir);
  Log log;
  Store store(options(path, &log));
  check_rows(store);
  CHECK(log.all() == "");
  CHECK(Raw(path).number("PRAGMA user_version") == schema_version());
}

TEST_CASE("a file of version 1 that is only read is brought up to date in a private copy") {
  Directory dir;
  const std::string path = make_version_1(dir), before = read_file(path);
  StoreOptions look = options(path), ship = options("");
  look.read_only = true;
  ship.shipped = {path};
  for (const StoreOptions& o : {look, ship}) {
    Store store(o);
    check_rows(store);
  }
  Store store(options(""));
  CHECK(store.merge_from(path).added == 3);
  check_rows(store);
  CHECK((read_file(path) == before));
  CHECK_FALSE(exists(path + "-journal"));
}

TEST_CASE("a file of version 1 with a strange schema is not migrated") {
  Directory dir;
  const std::string path = make_version_1(dir);
  Raw(path).exec("CREATE TRIGGER t AFTER INSERT ON uses BEGIN DELETE FROM binaries; END");
  Database db(path, Database::Mode::read_write);
  CHECK(inspect(db) == Fit::damaged);
  CHECK(adopt(db) == Fit::damaged);
  CHECK(db.integer("PRAGMA user_version") == 1);
}

TEST_CASE("a file of version 0 becomes one of today's") {
  Directory dir;
  Raw(dir.file()).exec("PRAGMA application_id=" + std::to_string(kApplicationId) + "; CREATE TABLE t(x); DROP TABLE t");
  CHECK(Raw(dir.file()).number("PRAGMA page_count") >= 1);
  Log log;
  Store store(options(dir.file(), &log));
  CHECK(log.all() == "");
  CHECK(store.put_binary(binary_key(0), binary(0)));
  CHECK(Raw(dir.file()).number("PRAGMA user_version") == schema_version());
}

static child::Work killed_migration("killed migration", [](const child::Arguments& a) {
  Database db(a[0], Database::Mode::read_write);
  (void)adopt(db, with(killed_step));
  return 0;
});

TEST_CASE("kill -9 in the middle of a migration leaves the old version") {
  for (const char* mode : {"WAL", "DELETE"}) {
    Directory dir;
    const std::string path = make_cache(dir);
    Raw(path).exec(std::string("PRAGMA journal_mode=") + mode);
    CHECK(child::run("killed migration", {path}) == -SIGKILL);
    Log log;
    Store store(options(path, &log));
    CHECK_FALSE(store.degraded());
    CHECK(log.all() == "");
    CHECK(store.find_binary(binary_key(0)));
    CHECK(Raw(path).number("PRAGMA user_version") == schema_version());
    CHECK(Raw(path).number("SELECT count(*) FROM sqlite_schema WHERE name='later'") == 0);
  }
}

static child::Work killed_creation("killed creation", [](const child::Arguments& a) {
  Database db(a[0], Database::Mode::read_write);
  Migration steps[] = {migrations()[0], killed_step};
  (void)adopt(db, steps);
  return 0;
});

TEST_CASE("kill -9 while the file is created leaves an empty cache") {
  Directory dir;
  write_file(dir.file(), "");
  CHECK(child::run("killed creation", {dir.file()}) == -SIGKILL);
  Log log;
  Store store(options(dir.file(), &log));
  CHECK(log.all() == "");
  CHECK(store.put_binary(binary_key(0), binary(0)));
}
