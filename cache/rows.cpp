// SPDX-License-Identifier: Apache-2.0
#include "cache/rows.h"

namespace tilewright::cache {

ChoiceRow read_choice(Statement& rows) {
  ChoiceRow row;
  row.problem = rows.text(0);
  row.candidate = rows.text(1);
  row.microseconds = rows.real(2);
  row.first = rows.text(3);
  row.first_microseconds = rows.real(4);
  row.environment = rows.text(5);
  row.imported = rows.integer(6) != 0;
  return row;
}

MeasurementRow read_measurement(Statement& rows) {
  MeasurementRow row;
  row.problem = rows.text(0);
  row.candidate = rows.text(1);
  row.kind = rows.text(2);
  row.detail = rows.text(3);
  row.microseconds = rows.real(4);
  row.low = rows.real(5);
  row.high = rows.real(6);
  row.rounds = rows.integer(7);
  row.error = rows.real(8);
  row.mhz = rows.real(9);
  row.resources = rows.text(10);
  row.environment = rows.text(11);
  row.imported = rows.integer(12) != 0;
  return row;
}

CompilerRow read_compiler(Statement& rows) {
  CompilerRow row;
  row.compiler.name = rows.text(0);
  row.library = rows.text(1);
  row.compiler.version = rows.text(2);
  row.compiler.asked_for = rows.text(3);
  row.compiler.path = rows.text(4);
  row.compiler.bytes = rows.integer(5);
  row.compiler.modified = rows.integer(6);
  return row;
}

std::optional<ReadList> read_list(Database& db, std::string_view problem) {
  Statement list = db.prepare("SELECT inputs,steps,hash FROM lists WHERE problem=?");
  if (!list.bind(1, problem).step()) return std::nullopt;
  ReadList read{{std::string(problem), list.text(0), {}, {}}, false};
  for (const std::byte step : list.bytes(1)) read.row.steps.push_back(std::to_integer<std::uint8_t>(step));
  Statement rows = db.prepare("SELECT candidate,listed,times FROM candidates WHERE problem=? ORDER BY place LIMIT ?");
  rows.bind(1, problem).bind(2, static_cast<std::int64_t>(kMaxListed + 1));
  // Somebody may have planted more than fits memory.
  for (std::size_t bytes = 0; bytes <= kMaxListBytes && rows.step();) {
    read.row.candidates.push_back({rows.text(0), rows.integer(1), rows.text(2)});
    const ListRow::Entry& c = read.row.candidates.back();
    bytes += c.candidate.size() + c.times.size();
  }
  read.intact = read.row.content_hash() == list.text(2);
  return read;
}

void insert_list(Database& db, const ListRow& row) {
  for (const char* sql : {"DELETE FROM lists WHERE problem=?", "DELETE FROM candidates WHERE problem=?"})
    db.prepare(sql).bind(1, row.problem).run();
  db.prepare("INSERT INTO lists(problem,inputs,steps,hash) VALUES(?,?,?,?)")
      .bind(1, row.problem)
      .bind(2, row.inputs)
      .bind(3, std::as_bytes(std::span(row.steps)))
      .bind(4, row.content_hash())
      .run();
  Statement insert = db.prepare("INSERT INTO candidates(problem,place,candidate,listed,times) VALUES(?,?,?,?,?)");
  std::int64_t place = 0;
  for (const ListRow::Entry& c : row.candidates)
    insert.bind(1, row.problem).bind(2, place++).bind(3, c.candidate).bind(4, c.listed).bind(5, c.times).run();
}

void insert_compiler(Database& db, const CompilerRow& row) {
  const StoredCompiler& compiler = row.compiler;
  db.prepare("DELETE FROM compilers WHERE name=? AND library=?").bind(1, compiler.name).bind(2, row.library).run();
  db.prepare("INSERT INTO compilers(name,library,version,asked_for,path,bytes,modified,hash) VALUES(?,?,?,?,?,?,?,?)")
      .bind(1, compiler.name)
      .bind(2, row.library)
      .bind(3, compiler.version)
      .bind(4, compiler.asked_for)
      .bind(5, compiler.path)
      .bind(6, compiler.bytes)
      .bind(7, compiler.modified)
      .bind(8, row.content_hash())
      .run();
}

}  // namespace tilewright::cache
