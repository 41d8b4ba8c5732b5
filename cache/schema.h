// SPDX-License-Identifier: Apache-2.0
// Schema of a cache file: its tables, its version, and how an older file is brought up to date. See
// docs/cache-format.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cache/sqlite.h"

namespace tilewright::cache {

// "TWch": tells our files from any other SQLite database, which we never touch.
inline constexpr std::uint32_t kApplicationId = 0x54576368;

// Step i turns a file of user_version i into one of i + 1. Step 0 makes a file out of an empty database.
using Migration = void (*)(Database& db);
std::span<const Migration> migrations();
inline std::uint32_t schema_version() { return static_cast<std::uint32_t>(migrations().size()); }

enum class Fit {
  ours,     // current version
  foreign,  // a database of another application: must stay untouched
  newer,    // written by a later version: must stay untouched
  damaged,  // ours, but its schema is not what we wrote
};

// Creates or upgrades in one transaction, then compares every line of the stored schema. Throws SqliteError.
Fit adopt(Database& db, std::span<const Migration> steps = migrations());
// The same for a file that cannot be written: an older version fits as `newer` does, that is, not at all.
Fit inspect(Database& db, std::span<const Migration> steps = migrations());
// The schema is exactly the one that the current migrations() lead to.
bool schema_matches(Database& db);

}  // namespace tilewright::cache
