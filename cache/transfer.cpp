// SPDX-License-Identifier: Apache-2.0
#include "cache/transfer.h"

#include <fmt/format.h>
#include <tilewright/text.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "cache/key.h"

namespace tilewright::cache {
namespace {

// Others wait for one transaction at most, and then find the file free for longer than they sleep between two attempts
// (on_busy() in sqlite.cpp), so that a long import starves nobody.
constexpr auto kTransaction = std::chrono::milliseconds(100), kPause = std::chrono::milliseconds(25);

enum class Fate { added, kept, replaced, refused };

struct Source {
  Layer& from;
  Layer& to;
  bool mark;                         // what is taken as imported
  std::set<std::string> ready = {};  // problems and environments that this transaction has brought over
  std::string why = {};              // the row that was refused last was

  Fate refuse(const char* reason) {
    why = reason;
    return Fate::refused;
  }
  Fate binary(std::int64_t id);
  Fate choice(std::int64_t id);
  Fate measurement(std::int64_t id);
  Fate list(std::int64_t id);
  Fate compiler(std::int64_t id);
  void bring_problem(const std::string& device, const std::string& problem, const std::string& hash);
  void bring_environment(const std::string& hash);
};

constexpr const char kDamaged[] = "damaged: its content does not match its hash, or cannot be read";
constexpr const char kGone[] = "its problem is not in the file";
constexpr const char kRange[] = "a value is out of range";
constexpr const char kControl[] = "a text has control characters or is not UTF-8";

// Whoever reads a listing must see what is there: an import takes no text that a terminal would obey.
bool texts_are_printable(std::initializer_list<std::string_view> lines) {
  return std::all_of(lines.begin(), lines.end(), [](std::string_view text) { return is_printable(text, true); });
}

bool problem_is_valid(const std::string& device, const std::string& problem, const std::string& hash) {
  return device.size() <= kMaxText && problem.size() <= kMaxText && parse_transcript(device).has_value() &&
         problem_hash(device, problem) == hash;
}

template <class... Texts>
bool exists(Database& db, const char* sql, const Texts&... values) {
  Statement row = db.prepare(sql);
  int index = 0;
  (row.bind(++index, values), ...);
  return row.step();
}

Fate Source::binary(std::int64_t id) {
  Statement row = from.db().prepare("SELECT key,transcript,metadata,hash,image FROM binaries WHERE rowid=?");
  if (!row.bind(1, id).step()) return refuse(kDamaged);
  const std::string key = row.text(0), transcript = row.text(1), metadata = row.text(2), content = row.text(3);
  const auto image = row.bytes(4);
  const auto parsed = parse_transcript(transcript);
  Binary binary;
  if (binary_hash(key, transcript, metadata, image) != content || transcript.size() > kMaxTranscript ||
      metadata.size() > kMaxText || !parsed || parsed->hash() != key || !decode_metadata(metadata, binary)) {
    return refuse(kDamaged);
  }
  if (!to.has_room_for(static_cast<std::int64_t>(image.size())))
    return refuse("larger than half of the cache's cap (TILEWRIGHT_CACHE_CAP)");
  if (exists(to.db(), "SELECT 1 FROM binaries WHERE key=? AND hash=?", key, content)) return Fate::kept;
  const bool other = exists(to.db(), "SELECT 1 FROM binaries WHERE key=?1 AND hash<>?2", key, content);
  if (other && to.find_binary(*parsed)) return Fate::kept;  // a valid one of ours stays
  to.insert_binary(key, transcript, metadata, image);
  return other ? Fate::replaced : Fate::added;
}

void Source::bring_problem(const std::string& device, const std::string& problem, const std::string& hash) {
  // Making room for one problem may evict another.
  if (ready.count(hash) && exists(to.db(), "SELECT 1 FROM problems WHERE hash=?", hash)) return;
  ready.insert(hash);
  to.insert_problem(device, problem);
}

void Source::bring_environment(const std::string& hash) {
  if (hash.empty() || !ready.insert(hash).second) return;
  Statement row = from.db().prepare("SELECT text FROM environments WHERE hash=?");
  if (!row.bind(1, hash).step()) return;
  const std::string text = row.text(0);
  if (text.size() > kMaxText || sha256_hex(text) != hash || (mark && !is_printable(text, true))) return;
  to.insert_environment(text);
}

// True if `theirs` replaces `mine`, a choice for the same problem.
bool displaces(const ChoiceRow& theirs, const StoredChoice& mine) {
  if (theirs.imported != mine.imported) return mine.imported;
  return theirs.microseconds > 0 && (mine.microseconds == 0 || theirs.microseconds < mine.microseconds);
}

Fate Source::choice(std::int64_t id) {
  Statement row = from.db().prepare(
      "SELECT " TILEWRIGHT_CHOICE_COLUMNS
      ",c.hash,p.device,p.problem FROM choices c JOIN problems p ON p.hash=c.problem WHERE c.rowid=?");
  if (!row.bind(1, id).step()) return refuse(kGone);
  ChoiceRow choice = read_choice(row);
  const std::string device = row.text(8), problem = row.text(9);
  if (row.text(7) != choice.content_hash() || !problem_is_valid(device, problem, choice.problem))
    return refuse(kDamaged);
  if (!choice.valid()) return refuse(kRange);
  if (mark && (!is_printable(problem) || !texts_are_printable({device, choice.candidate, choice.first})))
    return refuse(kControl);
  choice.imported = choice.imported || mark;
  const auto mine = to.find_choice(device, problem);
  if (mine && !displaces(choice, *mine)) return Fate::kept;
  bring_problem(device, problem, choice.problem);
  bring_environment(choice.environment);
  to.insert_choice(choice);
  return mine ? Fate::replaced : Fate::added;
}

Fate Source::measurement(std::int64_t id) {
  Statement row = from.db().prepare(
      "SELECT " TILEWRIGHT_MEASUREMENT_COLUMNS
      ",m.hash,p.device,p.problem FROM measurements m JOIN problems p ON p.hash=m.problem WHERE m.id=?");
  if (!row.bind(1, id).step()) return refuse(kGone);
  MeasurementRow m = read_measurement(row);
  const std::string device = row.text(14), problem = row.text(15);
  if (row.text(13) != m.content_hash() || !problem_is_valid(device, problem, m.problem)) return refuse(kDamaged);
  if (!m.valid()) return refuse(kRange);
  if (mark && (!is_printable(problem) || !texts_are_printable({device, m.candidate, m.detail})))
    return refuse(kControl);
  const auto known = [&] {
    return exists(to.db(), "SELECT 1 FROM measurements WHERE problem=? AND hash=?", m.problem, m.content_hash());
  };
  if (known()) return Fate::kept;  // one's own, perhaps, that comes back
  m.imported = m.imported || mark;
  if (known()) return Fate::kept;
  bring_problem(device, problem, m.problem);
  bring_environment(m.environment);
  to.insert_measurement(m);
  return Fate::added;
}

Fate Source::list(std::int64_t id) {
  Statement row = from.db().prepare(
      "SELECT l.problem,p.device,p.problem FROM lists l JOIN problems p ON p.hash=l.problem WHERE l.rowid=?");
  if (!row.bind(1, id).step()) return refuse(kGone);
  const std::string hash = row.text(0), device = row.text(1), problem = row.text(2);
  const auto read = read_list(from.db(), hash);
  if (!read || !read->intact || !problem_is_valid(device, problem, hash)) return refuse(kDamaged);
  if (!to_list(read->row)) return refuse(kRange);
  if (to.find_list(device, problem)) return Fate::kept;
  bring_problem(device, problem, hash);
  insert_list(to.db(), read->row);
  return Fate::added;
}

Fate Source::compiler(std::int64_t id) {
  Statement row = from.db().prepare("SELECT " TILEWRIGHT_COMPILER_COLUMNS ",k.hash FROM compilers k WHERE k.rowid=?");
  if (!row.bind(1, id).step()) return refuse(kDamaged);
  CompilerRow compiler = read_compiler(row);
  if (row.text(7) != compiler.content_hash()) return refuse(kDamaged);
  if (!compiler.valid()) return refuse(kRange);
  if (to.find_compiler(compiler.compiler.name, compiler.library)) return Fate::kept;
  compiler.compiler = {compiler.compiler.name, compiler.compiler.version};  // where it is holds for one machine
  insert_compiler(to.db(), compiler);
  return Fate::added;
}

Fate transfer_row(Source& source, Fate (Source::*one)(std::int64_t), std::int64_t id) {
  try {
    return (source.*one)(id);
  } catch (const BadValue&) {
  } catch (const SqliteError& error) {
    if (!error.too_big()) throw;
  }
  return source.refuse(kDamaged);
}

// Why rows of a table, "choices" say, were refused.
void refuse(MergeReport& report, const char* table, std::string_view why, std::int64_t rows = 1) {
  report.refused += rows;
  report.reasons[fmt::format("{}: {}", table, why)] += rows;
}

void count(Fate fate, const char* table, const std::string& why, MergeReport& report) {
  switch (fate) {
    case Fate::added: ++report.added; break;
    case Fate::kept: ++report.kept; break;
    case Fate::replaced: ++report.replaced; break;
    case Fate::refused: refuse(report, table, why); break;
  }
}

void copy(Source& source, const char* table, Fate (Source::*one)(std::int64_t), std::vector<std::int64_t> ids,
          const TransferRules& rules, MergeReport& report) {
  if (static_cast<std::int64_t>(ids.size()) > rules.most_rows) {
    refuse(report, table, fmt::format("more than {} rows; those used last are taken", rules.most_rows),
           static_cast<std::int64_t>(ids.size()) - rules.most_rows);
    // The most recently used ones are at the end.
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(rules.most_rows));
  }
  for (std::size_t next = 0; next < ids.size();) {
    rules.step();
    if (next > 0) std::this_thread::sleep_for(kPause);
    const auto end = Clock::now() + kTransaction;
    source.ready.clear();  // between transactions others may evict
    source.to.write([&] {
      do {
        const Fate fate = transfer_row(source, one, ids[next]);
        count(fate, table, source.why, report);
      } while (++next < ids.size() && Clock::now() < end);
    });
  }
}

}  // namespace

std::vector<std::int64_t> row_ids(Database& db, const char* sql) {
  std::vector<std::int64_t> ids;
  Statement rows = db.prepare(sql);
  while (rows.step()) ids.push_back(rows.integer(0));
  return ids;
}

MergeReport transfer(Layer& from, Layer& to, const TransferRules& rules) {
  MergeReport report;
  Source source{from, to, rules.imported};
  if (rules.binaries) {
    copy(source, "binaries", &Source::binary,
         row_ids(from.db(), "SELECT b.rowid FROM binaries b LEFT JOIN uses u ON u.id=b.key ORDER BY u.sequence"), rules,
         report);
  } else if (const std::int64_t rows = from.db().integer("SELECT count(*) FROM binaries"); rows > 0) {
    refuse(report, "binaries", "machine code, which only cache merge takes, from a file that you trust", rows);
  }
  copy(source, "measurements", &Source::measurement, row_ids(from.db(), "SELECT id FROM measurements ORDER BY id"),
       rules, report);
  copy(source, "choices", &Source::choice,
       row_ids(from.db(), "SELECT c.rowid FROM choices c LEFT JOIN uses u ON u.id=c.problem ORDER BY u.sequence"),
       rules, report);
  if (rules.imported) return report;  // the rest is of use with the binaries and on the device that it is about
  copy(source, "lists", &Source::list,
       row_ids(from.db(), "SELECT l.rowid FROM lists l LEFT JOIN uses u ON u.id=l.problem ORDER BY u.sequence"), rules,
       report);
  copy(source, "compilers", &Source::compiler, row_ids(from.db(), "SELECT rowid FROM compilers"), rules, report);
  return report;
}

}  // namespace tilewright::cache
