// SPDX-License-Identifier: Apache-2.0
// Schema of a cache file: its tables, its version, and how an older file is brought up to date. See
// docs/internals/cache-format.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cache/file/sqlite.h"

namespace tilewright::cache {

// "TWch" marks our files. Any other SQLite database is left untouched.
inline constexpr std::uint32_t kApplicationId = 0x54576368;

// Step i turns a file of user_version i into one of i + 1. Step 0 makes a file out of an empty database.
using Migration = void (*)(Database& db);
std::span<const Migration> migrations();
inline std::uint32_t schema_version() { return static_cast<std::uint32_t>(migrations().size()); }

enum class Fit {
  ours,     // current version
  older,    // ours, of an earlier version: adopt() brings it up to date
  foreign,  // a database of another application: must stay untouched
  newer,    // written by a later version: must stay untouched
  damaged,  // ours, but its schema is not what we wrote
};

// SHA-256 of all lines of the schema that the migrations make. Another version of SQLite may word a line in another
// way: inspect() then makes the schema and compares that.
inline constexpr std::string_view kSchemaHash = "d8f8dacfb646f7b05b848064d7ee7e9cafe1dbbf5d9b4f4678a94757540bf4e1";
std::string made_schema_hash();

// Has SQLite read the schema, which it does at the first statement, and which somebody may have made of any size.
// Throws BadValue if that takes seconds. Leaves `deadline` set.
void load_schema(Database& db, Clock::time_point deadline);

// Compares every line of the stored schema with what the migrations up to its version make, so that nothing of
// somebody else's in it is ever run. Throws SqliteError, as adopt() does.
Fit inspect(Database& db, std::span<const Migration> steps = migrations());
// The same after creating or upgrading in one transaction. Never `older`.
Fit adopt(Database& db, std::span<const Migration> steps = migrations());

}  // namespace tilewright::cache
