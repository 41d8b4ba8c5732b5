// SPDX-License-Identifier: Apache-2.0
// Rows of the tables, between statements and values. Nothing is verified here. Throws SqliteError and BadValue.
#pragma once

#include <optional>
#include <string_view>

#include "cache/file/sqlite.h"
#include "cache/record.h"

namespace tilewright::cache {

// Columns 0 to 6, 0 to 12 and 0 to 6 of a statement, and the rows that they make. `c`, `m` and `k` name the tables.
#define TILEWRIGHT_CHOICE_COLUMNS \
  "c.problem,c.candidate,c.microseconds,c.first,c.first_microseconds,c.environment,c.imported"
#define TILEWRIGHT_MEASUREMENT_COLUMNS                                                                    \
  "m.problem,m.candidate,m.kind,m.detail,m.microseconds,m.low,m.high,m.rounds,m.error,m.mhz,m.resources," \
  "m.environment,m.imported"
#define TILEWRIGHT_COMPILER_COLUMNS "k.name,k.library,k.version,k.asked_for,k.path,k.bytes,k.modified"
ChoiceRow read_choice(Statement& rows);
MeasurementRow read_measurement(Statement& rows);
CompilerRow read_compiler(Statement& rows);
// A list is read from two tables.
struct ReadList {
  ListRow row;
  bool intact = false;  // it has the hash that it was stored with
};
std::optional<ReadList> read_list(Database& db, std::string_view problem);

// These replace what there is under the key.
void insert_list(Database& db, const ListRow& row);
void insert_compiler(Database& db, const CompilerRow& row);

}  // namespace tilewright::cache
