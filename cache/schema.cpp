// SPDX-License-Identifier: Apache-2.0
#include "cache/schema.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tilewright::cache {
namespace {

struct Object {
  const char* type;
  const char* name;
  const char* table;
  const char* sql;  // exactly as SQLite stores it
};

// `uses` is apart from the rows it orders, because SQLite rewrites a whole row, image and all, to change one column.
constexpr Object kObjects[] = {
    {"table", "problems", "problems",
     "CREATE TABLE problems(hash TEXT NOT NULL,device TEXT NOT NULL,problem TEXT NOT NULL)"},
    {"table", "choices", "choices",
     "CREATE TABLE choices(problem TEXT NOT NULL,candidate TEXT NOT NULL,microseconds REAL NOT NULL,first TEXT NOT "
     "NULL,"
     "first_microseconds REAL NOT NULL,environment TEXT NOT NULL,hash TEXT NOT NULL)"},
    {"table", "measurements", "measurements",
     "CREATE TABLE measurements(id INTEGER PRIMARY KEY,problem TEXT NOT NULL,candidate TEXT NOT NULL,kind TEXT NOT "
     "NULL,"
     "detail TEXT NOT NULL,microseconds REAL NOT NULL,low REAL NOT NULL,high REAL NOT NULL,rounds INTEGER NOT NULL,"
     "error REAL NOT NULL,mhz REAL NOT NULL,resources TEXT NOT NULL,environment TEXT NOT NULL,hash TEXT NOT NULL)"},
    {"table", "binaries", "binaries",
     "CREATE TABLE binaries(key TEXT NOT NULL,transcript TEXT NOT NULL,metadata TEXT NOT NULL,image BLOB NOT NULL,"
     "hash TEXT NOT NULL)"},
    {"table", "environments", "environments", "CREATE TABLE environments(hash TEXT NOT NULL,text TEXT NOT NULL)"},
    {"table", "uses", "uses", "CREATE TABLE uses(id TEXT NOT NULL,sequence INTEGER NOT NULL)"},
    {"index", "problems_hash", "problems", "CREATE UNIQUE INDEX problems_hash ON problems(hash)"},
    {"index", "problems_text", "problems", "CREATE INDEX problems_text ON problems(device,problem)"},
    {"index", "choices_problem", "choices", "CREATE UNIQUE INDEX choices_problem ON choices(problem)"},
    {"index", "measurements_problem", "measurements", "CREATE INDEX measurements_problem ON measurements(problem)"},
    {"index", "binaries_key", "binaries", "CREATE UNIQUE INDEX binaries_key ON binaries(key)"},
    {"index", "environments_hash", "environments", "CREATE UNIQUE INDEX environments_hash ON environments(hash)"},
    {"index", "uses_id", "uses", "CREATE UNIQUE INDEX uses_id ON uses(id)"},
    {"index", "uses_sequence", "uses", "CREATE INDEX uses_sequence ON uses(sequence)"},
};

void create_version_1(Database& db) {
  for (const Object& object : kObjects) db.exec(object.sql);
}

constexpr Migration kMigrations[] = {create_version_1};

std::int64_t user_version(Database& db) { return db.integer("PRAGMA user_version"); }

// No table, and nobody's mark: also what a process leaves that dies while it creates a file.
bool is_empty(Database& db) {
  return db.integer("PRAGMA page_count") <= 1 && db.integer("PRAGMA application_id") == 0 && user_version(db) == 0 &&
         db.integer("SELECT count(*) FROM sqlite_schema") == 0;
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

bool schema_matches(Database& db) {
  if (db.text("PRAGMA encoding") != "UTF-8") return false;
  std::vector<const Object*> missing;
  for (const Object& object : kObjects) missing.push_back(&object);
  Statement rows = db.prepare("SELECT type,name,tbl_name,sql FROM sqlite_schema");
  while (rows.step()) {
    const auto found = std::find_if(missing.begin(), missing.end(), [&](const Object* object) {
      return rows.text(0) == object->type && rows.text(1) == object->name && rows.text(2) == object->table &&
             rows.text(3) == object->sql;
    });
    if (found == missing.end()) return false;
    missing.erase(found);
  }
  return missing.empty();
}

Fit inspect(Database& db, std::span<const Migration> steps) {
  if (db.integer("PRAGMA application_id") != kApplicationId) return Fit::foreign;
  if (user_version(db) != static_cast<std::int64_t>(steps.size())) return Fit::newer;
  try {
    return schema_matches(db) ? Fit::ours : Fit::damaged;
  } catch (const BadValue&) {
    return Fit::damaged;  // sqlite_schema itself holds something else than text
  }
}

Fit adopt(Database& db, std::span<const Migration> steps) {
  const bool empty = is_empty(db);
  if (!empty && db.integer("PRAGMA application_id") != kApplicationId) return Fit::foreign;
  const std::int64_t version = user_version(db);
  if (version > static_cast<std::int64_t>(steps.size())) return Fit::newer;
  if (version < 0) return Fit::damaged;
  if (empty || version < static_cast<std::int64_t>(steps.size())) upgrade(db, steps);
  return inspect(db, steps);
}

}  // namespace tilewright::cache
