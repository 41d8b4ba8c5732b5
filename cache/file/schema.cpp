// SPDX-License-Identifier: Apache-2.0
#include "cache/file/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cache/file/notes.h"
#include "cache/key.h"

namespace tilewright::cache {
namespace {

// `uses` is apart from the rows it orders, because SQLite rewrites a whole row, image and all, to change one column.
void create_version_1(Database& db) {
  for (const char* sql : {
           "CREATE TABLE problems(hash TEXT NOT NULL,device TEXT NOT NULL,problem TEXT NOT NULL)",
           "CREATE TABLE choices(problem TEXT NOT NULL,candidate TEXT NOT NULL,microseconds REAL NOT NULL,"
           "first TEXT NOT NULL,first_microseconds REAL NOT NULL,environment TEXT NOT NULL,hash TEXT NOT NULL)",
           "CREATE TABLE measurements(id INTEGER PRIMARY KEY,problem TEXT NOT NULL,candidate TEXT NOT NULL,"
           "kind TEXT NOT NULL,detail TEXT NOT NULL,microseconds REAL NOT NULL,low REAL NOT NULL,high REAL NOT NULL,"
           "rounds INTEGER NOT NULL,error REAL NOT NULL,mhz REAL NOT NULL,resources TEXT NOT NULL,"
           "environment TEXT NOT NULL,hash TEXT NOT NULL)",
           "CREATE TABLE binaries(key TEXT NOT NULL,transcript TEXT NOT NULL,metadata TEXT NOT NULL,"
           "image BLOB NOT NULL,hash TEXT NOT NULL)",
           "CREATE TABLE environments(hash TEXT NOT NULL,text TEXT NOT NULL)",
           "CREATE TABLE uses(id TEXT NOT NULL,sequence INTEGER NOT NULL)",
           "CREATE UNIQUE INDEX problems_hash ON problems(hash)",
           "CREATE INDEX problems_text ON problems(device,problem)",
           "CREATE UNIQUE INDEX choices_problem ON choices(problem)",
           "CREATE INDEX measurements_problem ON measurements(problem)",
           "CREATE UNIQUE INDEX binaries_key ON binaries(key)",
           "CREATE UNIQUE INDEX environments_hash ON environments(hash)",
           "CREATE UNIQUE INDEX uses_id ON uses(id)",
           "CREATE INDEX uses_sequence ON uses(sequence)",
       }) {
    db.exec(sql);
  }
}

// Builds of one kernel by several compilers; rows that were imported; a measurement is found by its hash.
void create_version_2(Database& db) {
  for (const char* sql : {
           "CREATE TABLE builds(kernel TEXT NOT NULL,key TEXT NOT NULL)",
           "CREATE INDEX builds_kernel ON builds(kernel)",
           "CREATE UNIQUE INDEX builds_key ON builds(key)",
           "ALTER TABLE choices ADD COLUMN imported INTEGER NOT NULL DEFAULT 0",
           "ALTER TABLE measurements ADD COLUMN imported INTEGER NOT NULL DEFAULT 0",
           "DROP INDEX measurements_problem",
           "CREATE INDEX measurements_problem ON measurements(problem,hash)",
       }) {
    db.exec(sql);
  }
  Statement binaries = db.prepare("SELECT key,transcript FROM binaries ORDER BY rowid");
  Statement insert = db.prepare("INSERT OR REPLACE INTO builds(kernel,key) VALUES(?,?)");
  while (binaries.step()) {
    try {
      const std::string key = binaries.text(0);
      if (const auto parsed = parse_transcript(binaries.text(1)))
        insert.bind(1, kernel_hash(*parsed)).bind(2, key).run();
    } catch (const BadValue&) {  // a damaged row, which a look-up deletes
    }
  }
}

// Candidate lists and compilers, which version 2 kept as choices with a text in `environments`.
void create_version_3(Database& db) {
  for (const char* sql : {
           "CREATE TABLE lists(problem TEXT NOT NULL,inputs TEXT NOT NULL,steps BLOB NOT NULL,hash TEXT NOT NULL)",
           "CREATE TABLE candidates(problem TEXT NOT NULL,place INTEGER NOT NULL,candidate TEXT NOT NULL,"
           "listed INTEGER NOT NULL,times TEXT NOT NULL)",
           "CREATE TABLE compilers(name TEXT NOT NULL,library TEXT NOT NULL,version TEXT NOT NULL,"
           "asked_for TEXT NOT NULL,path TEXT NOT NULL,bytes INTEGER NOT NULL,modified INTEGER NOT NULL,"
           "hash TEXT NOT NULL)",
           "CREATE UNIQUE INDEX lists_problem ON lists(problem)",
           "CREATE UNIQUE INDEX candidates_place ON candidates(problem,place)",
           "CREATE UNIQUE INDEX compilers_name ON compilers(name,library)",
       }) {
    db.exec(sql);
  }
  move_notes(db);
}

constexpr Migration kMigrations[] = {create_version_1, create_version_2, create_version_3};

std::int64_t user_version(Database& db) { return db.integer("PRAGMA user_version"); }

// No table, and nobody's mark: also what a process leaves that dies while it creates a file.
bool is_empty(Database& db) {
  return db.integer("PRAGMA page_count") <= 1 && db.integer("PRAGMA application_id") == 0 && user_version(db) == 0 &&
         db.integer("SELECT count(*) FROM sqlite_schema") == 0;
}

// type, name, table and text of everything in a database, sorted.
using Schema = std::vector<std::array<std::string, 4>>;

Schema read_schema(Database& db) {
  Schema schema;
  Statement rows = db.prepare("SELECT type,name,tbl_name,sql FROM sqlite_schema");
  while (rows.step()) schema.push_back({rows.text(0), rows.text(1), rows.text(2), rows.text(3)});
  std::sort(schema.begin(), schema.end());
  return schema;
}

Schema schema_after(std::span<const Migration> steps) {
  Database db(":memory:", Database::Mode::memory);
  for (const Migration step : steps) step(db);
  return read_schema(db);
}

std::string hash_of(const Schema& schema) {
  FieldHash hash("tilewright schema 1");
  for (const auto& line : schema)
    for (const std::string& field : line) hash.add(std::string_view(field));
  return hash.hex();
}

bool schema_fits(Database& db, std::span<const Migration> steps) {
  try {
    if (db.text("PRAGMA encoding") != "UTF-8") return false;
    const Schema schema = read_schema(db);
    const bool today = steps.data() == migrations().data() && steps.size() == migrations().size();
    // Every process opens a file, and making a database to compare with takes longer than everything else there.
    return (today && hash_of(schema) == kSchemaHash) || schema == schema_after(steps);
  } catch (const BadValue&) {
    return false;  // sqlite_schema itself holds something else than text
  }
}

void upgrade(Database& db, std::span<const Migration> steps) {
  // Has an effect only on an empty file: pages freed by eviction can be given back. It writes the first page, still
  // without our application_id, in a transaction of its own; see is_empty().
  db.exec("PRAGMA auto_vacuum=INCREMENTAL");
  Transaction transaction(db);
  // Another process may have done it while we waited for the lock.
  for (auto at = static_cast<std::size_t>(user_version(db)); at < steps.size(); ++at) steps[at](db);
  if (user_version(db) < static_cast<std::int64_t>(steps.size())) {
    db.exec(("PRAGMA application_id=" + std::to_string(kApplicationId)).c_str());
    db.exec(("PRAGMA user_version=" + std::to_string(steps.size())).c_str());
  }
  transaction.commit();
}

}  // namespace

std::span<const Migration> migrations() { return kMigrations; }

std::string made_schema_hash() { return hash_of(schema_after(kMigrations)); }

void load_schema(Database& db, Clock::time_point deadline) {
  constexpr auto kTime = std::chrono::seconds(2);  // a cache's takes less than a millisecond
  db.set_deadline(std::min(deadline, Clock::now() + kTime));
  try {
    (void)db.integer("SELECT 1 FROM sqlite_schema");
  } catch (const SqliteError& error) {
    if (!error.interrupted()) throw;
    throw BadValue(fmt::format("its schema takes more than {} s to read; a cache has a few tables, so this is none",
                               kTime.count()));
  }
  db.set_deadline(deadline);
}

Fit inspect(Database& db, std::span<const Migration> steps) {
  if (db.integer("PRAGMA application_id") != kApplicationId) return Fit::foreign;
  const std::int64_t version = user_version(db), today = static_cast<std::int64_t>(steps.size());
  if (version > today) return Fit::newer;
  if (version < 0) return Fit::damaged;
  if (!schema_fits(db, steps.first(static_cast<std::size_t>(version)))) return Fit::damaged;
  return version < today ? Fit::older : Fit::ours;
}

Fit adopt(Database& db, std::span<const Migration> steps) {
  if (!is_empty(db)) {
    const Fit fit = inspect(db, steps);
    if (fit != Fit::older) return fit;
  }
  upgrade(db, steps);
  return inspect(db, steps);
}

}  // namespace tilewright::cache
