// SPDX-License-Identifier: Apache-2.0
#include "cache/schema.h"

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
  CHECK(schema_matches(db));
  CHECK(db.integer("PRAGMA user_version") == schema_version());
  CHECK(db.integer("PRAGMA application_id") == kApplicationId);
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

TEST_CASE("row 6: an older version is migrated with its rows") {
  Directory dir;
  const std::string path = make_cache(dir);
  {
    Database db(path, Database::Mode::read_write);
    // schema_matches() knows only today's schema, hence `damaged`; the migration itself has happened.
    CHECK(adopt(db, with(second_step)) == Fit::damaged);
    CHECK(db.integer("PRAGMA user_version") == schema_version() + 1);
    CHECK(db.integer("SELECT count(*) FROM sqlite_schema WHERE name='later'") == 1);
    CHECK(db.integer("SELECT count(*) FROM binaries") == 1);
  }
  Store store(options(path));
  CHECK(store.degraded());  // for this library the file is now a newer one
}

TEST_CASE("row 6: a file of version 0 becomes one of today's") {
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

TEST_CASE("row 6: kill -9 in the middle of a migration leaves the old version") {
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
