// SPDX-License-Identifier: Apache-2.0
#include "cache/transfer.h"

#include <algorithm>

#include "cache/key.h"

namespace tilewright::cache {
namespace {

constexpr std::size_t kBatch = 256;  // rows per transaction: other processes wait for one batch at most

enum class Fate { added, kept, replaced, refused };

struct Source {
  Layer& from;
  Layer& to;

  Fate binary(std::int64_t id);
  Fate choice(std::int64_t id);
  Fate measurement(std::int64_t id);
  std::string environment(const std::string& hash);
};

bool device_is_valid(const std::string& transcript) {
  return transcript.size() <= kMaxText && parse_transcript(transcript).has_value();
}

bool exists(Database& db, const char* sql, const std::string& a, const std::string& b) {
  Statement row = db.prepare(sql);
  return row.bind(1, a).bind(2, b).step();
}

Fate Source::binary(std::int64_t id) {
  Statement row = from.db().prepare("SELECT key,transcript,metadata,hash,image FROM binaries WHERE rowid=?");
  if (!row.bind(1, id).step()) return Fate::refused;
  const std::string key = row.text(0), transcript = row.text(1), metadata = row.text(2), content = row.text(3);
  const auto image = row.bytes(4);
  const auto parsed = parse_transcript(transcript);
  Binary binary;
  if (binary_hash(key, transcript, metadata, image) != content || transcript.size() > kMaxTranscript ||
      metadata.size() > kMaxText || !parsed || parsed->hash() != key || !decode_metadata(metadata, binary)) {
    return Fate::refused;
  }
  if (!to.has_room_for(static_cast<std::int64_t>(image.size()))) return Fate::refused;
  if (exists(to.db(), "SELECT 1 FROM binaries WHERE key=? AND hash=?", key, content)) return Fate::kept;
  const bool other = exists(to.db(), "SELECT 1 FROM binaries WHERE key=?1 AND hash<>?2", key, content);
  if (other && to.find_binary(*parsed)) return Fate::kept;  // a valid one of ours stays
  to.insert_binary(key, transcript, metadata, image);
  return other ? Fate::replaced : Fate::added;
}

std::string Source::environment(const std::string& hash) {
  Statement row = from.db().prepare("SELECT text FROM environments WHERE hash=?");
  if (hash.empty() || !row.bind(1, hash).step()) return {};
  const std::string text = row.text(0);
  return text.size() <= kMaxText && sha256_hex(text) == hash ? text : std::string();
}

Fate Source::choice(std::int64_t id) {
  Statement row = from.db().prepare(
      "SELECT c.problem,c.candidate,c.microseconds,c.first,c.first_microseconds,c.environment,c.hash,p.device,p.problem"
      " FROM choices c JOIN problems p ON p.hash=c.problem WHERE c.rowid=?");
  if (!row.bind(1, id).step()) return Fate::refused;
  ChoiceRow choice{row.text(0), row.text(1), row.real(2), row.text(3), row.real(4), row.text(5)};
  const std::string device = row.text(7), problem = row.text(8);
  if (row.text(6) != choice.content_hash() || !choice.valid() || !device_is_valid(device) ||
      problem.size() > kMaxText || problem_hash(device, problem) != choice.problem) {
    return Fate::refused;
  }
  const auto mine = to.find_choice(device, problem);
  if (mine) {
    const bool faster =
        choice.microseconds > 0 && (mine->microseconds == 0 || choice.microseconds < mine->microseconds);
    if (!faster) return Fate::kept;
  }
  to.insert_problem(device, problem);
  to.insert_environment(environment(choice.environment));
  to.insert_choice(choice);
  return mine ? Fate::replaced : Fate::added;
}

Fate Source::measurement(std::int64_t id) {
  Statement row = from.db().prepare(
      "SELECT m.problem,m.candidate,m.kind,m.detail,m.microseconds,m.low,m.high,m.rounds,m.error,m.mhz,m.resources,"
      "m.environment,m.hash,p.device,p.problem"
      " FROM measurements m JOIN problems p ON p.hash=m.problem WHERE m.id=?");
  if (!row.bind(1, id).step()) return Fate::refused;
  const MeasurementRow m{row.text(0), row.text(1),    row.text(2), row.text(3), row.real(4),  row.real(5),
                         row.real(6), row.integer(7), row.real(8), row.real(9), row.text(10), row.text(11)};
  const std::string hash = row.text(12), device = row.text(13), problem = row.text(14);
  if (hash != m.content_hash() || !m.valid() || !device_is_valid(device) || problem.size() > kMaxText ||
      problem_hash(device, problem) != m.problem) {
    return Fate::refused;
  }
  if (exists(to.db(), "SELECT 1 FROM measurements WHERE problem=? AND hash=?", m.problem, hash)) return Fate::kept;
  to.insert_problem(device, problem);
  to.insert_environment(environment(m.environment));
  to.insert_measurement(m);
  return Fate::added;
}

void copy(Source source, Fate (Source::*one)(std::int64_t), std::vector<std::int64_t> ids, const TransferRules& rules,
          MergeReport& report) {
  if (static_cast<std::int64_t>(ids.size()) > rules.most_rows) {
    report.refused += static_cast<std::int64_t>(ids.size()) - rules.most_rows;
    // The most recently used ones are at the end.
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(rules.most_rows));
  }
  for (std::size_t begin = 0; begin < ids.size(); begin += kBatch) {
    rules.step();
    source.to.write([&] {
      for (std::size_t i = begin; i < std::min(ids.size(), begin + kBatch); ++i) {
        Fate fate = Fate::refused;
        try {
          fate = (source.*one)(ids[i]);
        } catch (const BadValue&) {
        } catch (const SqliteError& error) {
          if (!error.too_big()) throw;
        }
        (fate == Fate::added      ? report.added
         : fate == Fate::kept     ? report.kept
         : fate == Fate::replaced ? report.replaced
                                  : report.refused) += 1;
      }
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
  Source source{from, to};
  if (rules.binaries) {
    copy(source, &Source::binary,
         row_ids(from.db(), "SELECT b.rowid FROM binaries b LEFT JOIN uses u ON u.id=b.key ORDER BY u.sequence"), rules,
         report);
  } else {
    report.refused += from.db().integer("SELECT count(*) FROM binaries");
  }
  copy(source, &Source::measurement, row_ids(from.db(), "SELECT id FROM measurements ORDER BY id"), rules, report);
  copy(source, &Source::choice,
       row_ids(from.db(), "SELECT c.rowid FROM choices c LEFT JOIN uses u ON u.id=c.problem ORDER BY u.sequence"),
       rules, report);
  return report;
}

}  // namespace tilewright::cache
