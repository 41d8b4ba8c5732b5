// SPDX-License-Identifier: Apache-2.0
// What a file of version 2 kept as texts in `environments`, of choices under devices of their own.
#pragma once

#include <optional>
#include <string_view>

#include "cache/file/sqlite.h"
#include "cache/record.h"

namespace tilewright::cache {

// Moves these choices to the tables of version 3. A damaged or imported one is left behind: nothing uses it.
void move_notes(Database& db);

// "INPUTS", "rows 1", for each candidate "candidate LISTED CANDIDATE" and "times" with its times, and "steps" with runs
// of steps, PLACExCOUNT; a line each.
std::optional<CandidateList> parse_row_table(std::string_view note);

// "VERSION", or a line each with the version, what was asked for, and the path, size and time of the file.
StoredCompiler parse_compiler(std::string_view note);

}  // namespace tilewright::cache
