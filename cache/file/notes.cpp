// SPDX-License-Identifier: Apache-2.0
#include "cache/file/notes.h"

#include <charconv>
#include <vector>

#include "cache/key.h"
#include "cache/rows.h"

namespace tilewright::cache {
namespace {

std::string_view cut(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return head;
}

template <class Integer>
bool to_integer(std::string_view text, Integer& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_steps(std::string_view runs, std::vector<std::uint8_t>& steps) {
  while (!runs.empty()) {
    std::string_view count = cut(runs, ' ');
    std::uint8_t place = 0;
    std::size_t many = 0;
    if (!to_integer(cut(count, 'x'), place) || !to_integer(count, many) || many > kMaxText - steps.size()) return false;
    steps.insert(steps.end(), many, place);
  }
  return true;
}

std::optional<CandidateList> parse_prewarmed(std::string_view note) {
  ListRow row;
  while (!note.empty()) row.candidates.push_back({std::string(cut(note, '\n')), 1, {}});
  return to_list(row);
}

struct Note {
  std::string device, problem, hash, text;
};

// Nothing if the choice, its problem or its text is damaged, or it was imported.
std::optional<Note> read_note(Database& db, std::int64_t choice) {
  Statement row = db.prepare("SELECT " TILEWRIGHT_CHOICE_COLUMNS
                             ",c.hash,p.device,p.problem,e.text FROM choices c JOIN problems p ON p.hash=c.problem"
                             " JOIN environments e ON e.hash=c.environment WHERE c.rowid=?");
  try {
    if (!row.bind(1, choice).step()) return std::nullopt;
    const ChoiceRow c = read_choice(row);
    Note note{row.text(8), row.text(9), c.problem, row.text(10)};
    if (!c.imported && row.text(7) == c.content_hash() && problem_hash(note.device, note.problem) == c.problem &&
        sha256_hex(note.text) == c.environment)
      return note;
  } catch (const BadValue&) {
  }
  return std::nullopt;
}

void put_list(Database& db, const Note& note, const std::optional<CandidateList>& list) {
  auto row = list ? to_row(*list) : std::nullopt;
  if (!row) return;
  row->problem = note.hash;
  insert_list(db, *row);
}

void put_compiler(Database& db, const Note& note) {
  CompilerRow row{parse_compiler(note.text), field_of(note.device, "library")};
  row.compiler.name = note.problem == "compiler" ? "nvrtc" : "llvm";
  if (row.valid()) insert_compiler(db, row);
}

}  // namespace

std::optional<CandidateList> parse_row_table(std::string_view note) {
  ListRow row;
  row.inputs = cut(note, '\n');
  if (cut(note, '\n') != "rows 1") return std::nullopt;
  while (!note.empty()) {
    std::string_view line = cut(note, '\n');
    const std::string_view word = cut(line, ' ');
    if (word == "candidate") {
      std::int64_t listed = 0;
      if (!to_integer(cut(line, ' '), listed)) return std::nullopt;
      row.candidates.push_back({std::string(line), listed, {}});
    } else if (word == "times" && !row.candidates.empty()) {
      const auto times = decode_times(line);  // four digits, which may be written otherwise today
      if (!times) return std::nullopt;
      row.candidates.back().times = encode_times(*times);
    } else if (word != "steps" || !parse_steps(line, row.steps)) {
      return std::nullopt;
    }
  }
  return row.steps.empty() ? std::nullopt : to_list(row);
}

StoredCompiler parse_compiler(std::string_view note) {
  StoredCompiler compiler;
  compiler.version = cut(note, '\n');
  compiler.asked_for = cut(note, '\n');
  compiler.path = cut(note, '\n');
  constexpr std::int64_t kSecond = 1'000'000'000, kEnd = 9'000'000'000;  // of what 64 bits of nanoseconds can hold
  std::string_view modified = note;
  std::int64_t seconds = 0, nanoseconds = 0;
  if (!to_integer(cut(modified, '\n'), compiler.bytes) || !to_integer(cut(modified, '.'), seconds) ||
      !to_integer(modified, nanoseconds) || seconds < 0 || seconds >= kEnd || nanoseconds < 0 || nanoseconds >= kSecond)
    return {{}, compiler.version};
  compiler.modified = seconds * kSecond + nanoseconds;
  return compiler;
}

void move_notes(Database& db) {
  std::vector<std::int64_t> choices;
  {
    // In this order a file's identity replaces a version alone, which was kept apart for exports.
    Statement rows = db.prepare(
        "SELECT c.rowid FROM choices c JOIN problems p ON p.hash=c.problem WHERE "
        "instr(p.device,'kind=prewarm'||char(10))"
        " OR instr(p.device,'rows=all'||char(10)) OR instr(p.device,'kind=compiler'||char(10))"
        " OR instr(p.device,'kind=machine'||char(10)) ORDER BY instr(p.device,'kind=machine'||char(10)),c.rowid");
    while (rows.step()) choices.push_back(rows.integer(0));
  }
  for (const std::int64_t id : choices) {
    const std::optional<Note> note = read_note(db, id);
    const std::string kind = note ? field_of(note->device, "kind") : "";
    if (kind == "prewarm") put_list(db, *note, parse_prewarmed(note->text));
    if (kind == "choice") put_list(db, *note, parse_row_table(note->text));
    if (kind == "compiler" || kind == "machine") put_compiler(db, *note);
    db.prepare("DELETE FROM choices WHERE rowid=?").bind(1, id).run();
  }
  for (const char* sql : {
           // A compiler is no problem, and a problem without rows of its own is of no use.
           "DELETE FROM problems WHERE hash NOT IN (SELECT problem FROM choices UNION ALL SELECT problem FROM lists"
           " UNION ALL SELECT problem FROM measurements)",
           "DELETE FROM uses WHERE id NOT IN (SELECT hash FROM problems UNION ALL SELECT key FROM binaries)",
           "DELETE FROM environments WHERE hash NOT IN (SELECT environment FROM choices UNION ALL"
           " SELECT environment FROM measurements)",
       })
    db.exec(sql);
}

}  // namespace tilewright::cache
