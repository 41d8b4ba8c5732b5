// SPDX-License-Identifier: Apache-2.0
// Layer's writing: rows, the order of their use, and the eviction of those used least recently.
#include <fmt/format.h>
#include <tilewright/version.h>

#include <algorithm>

#include "cache/key.h"
#include "cache/layer.h"

namespace tilewright::cache {
namespace {

constexpr std::int64_t kRowOverhead = 12 << 10;  // bytes: index entries and partly filled pages of one row
constexpr std::int64_t kMaxSequence = std::int64_t{1} << 61;

// Largest sequence number, negative if what is stored cannot be one of ours.
std::int64_t last_sequence(Database& db) {
  try {
    const std::int64_t sequence = db.integer("SELECT coalesce(max(sequence),0) FROM uses");
    return sequence > kMaxSequence ? -1 : sequence;
  } catch (const BadValue&) {
    return -1;
  }
}

}  // namespace

void Layer::write(const std::function<void()>& body) {
  end_reading();
  Transaction transaction(*db_);
  flush_marks();
  body();
  transaction.commit();
  marks_.clear();
}

void Layer::touch(const std::string& id) {
  marks_[id] = ++next_mark_;
  flush_marks();
}

void Layer::flush_marks() {
  if (marks_.empty()) return;
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [id, mark] : marks_) order.emplace_back(mark, id);
  std::sort(order.begin(), order.end());
  std::int64_t sequence = last_sequence(*db_);
  if (sequence < 0) {  // damaged; start the order anew
    db_->exec("UPDATE uses SET sequence=0");
    sequence = 0;
  }
  // Sequence numbers order the uses, because a clock may be set back.
  Statement update = db_->prepare("UPDATE uses SET sequence=? WHERE id=?");
  Statement insert = db_->prepare("INSERT INTO uses(id,sequence) VALUES(?,?)");
  for (const auto& [mark, id] : order) {
    ++sequence;
    update.bind(1, sequence).bind(2, id).run();
    if (db_->changes() == 0) insert.bind(1, id).bind(2, sequence).run();
  }
  marks_.clear();
}

void Layer::insert_binary(const std::string& key, const std::string& transcript, const std::string& metadata,
                          std::span<const std::byte> image) {
  evict_for(static_cast<std::int64_t>(image.size() + transcript.size() + metadata.size()));
  db_->prepare("DELETE FROM binaries WHERE key=?").bind(1, key).run();
  db_->prepare("INSERT INTO binaries(key,transcript,metadata,image,hash) VALUES(?,?,?,?,?)")
      .bind(1, key)
      .bind(2, transcript)
      .bind(3, metadata)
      .bind(4, image)
      .bind(5, binary_hash(key, transcript, metadata, image))
      .run();
  db_->prepare("DELETE FROM builds WHERE key=?").bind(1, key).run();
  if (const auto parsed = parse_transcript(transcript)) {
    db_->prepare("INSERT INTO builds(kernel,key) VALUES(?,?)").bind(1, kernel_hash(*parsed)).bind(2, key).run();
  }
  touch(key);
}

std::string Layer::insert_problem(const std::string& device, std::string_view problem) {
  const std::string hash = problem_hash(device, problem);
  touch(hash);  // before making room, so that this problem's rows are the last to be evicted
  evict_for(static_cast<std::int64_t>(device.size() + problem.size()));
  // A row whose text is not what its hash says is replaced.
  db_->prepare("DELETE FROM problems WHERE hash=?1 AND NOT(device=?2 AND problem=?3)")
      .bind(1, hash)
      .bind(2, device)
      .bind(3, problem)
      .run();
  db_->prepare("INSERT OR IGNORE INTO problems(hash,device,problem) VALUES(?,?,?)")
      .bind(1, hash)
      .bind(2, device)
      .bind(3, problem)
      .run();
  touch(hash);
  return hash;
}

std::string Layer::insert_environment(std::string_view text) {
  if (text.empty()) return {};
  const std::string hash = sha256_hex(text);
  db_->prepare("DELETE FROM environments WHERE hash=? AND text<>?").bind(1, hash).bind(2, text).run();
  db_->prepare("INSERT OR IGNORE INTO environments(hash,text) VALUES(?,?)").bind(1, hash).bind(2, text).run();
  return hash;
}

void Layer::insert_choice(const ChoiceRow& row) {
  db_->prepare("DELETE FROM choices WHERE problem=?").bind(1, row.problem).run();
  db_->prepare(
         "INSERT INTO choices(problem,candidate,microseconds,first,first_microseconds,environment,imported,hash)"
         " VALUES(?,?,?,?,?,?,?,?)")
      .bind(1, row.problem)
      .bind(2, row.candidate)
      .bind(3, row.microseconds)
      .bind(4, row.first)
      .bind(5, row.first_microseconds)
      .bind(6, row.environment)
      .bind(7, std::int64_t{row.imported})
      .bind(8, row.content_hash())
      .run();
}

void Layer::insert_measurement(const MeasurementRow& row) {
  db_->prepare(
         "INSERT INTO measurements(problem,candidate,kind,detail,microseconds,low,high,rounds,error,mhz,resources,"
         "environment,imported,hash) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)")
      .bind(1, row.problem)
      .bind(2, row.candidate)
      .bind(3, row.kind)
      .bind(4, row.detail)
      .bind(5, row.microseconds)
      .bind(6, row.low)
      .bind(7, row.high)
      .bind(8, row.rounds)
      .bind(9, row.error)
      .bind(10, row.mhz)
      .bind(11, row.resources)
      .bind(12, row.environment)
      .bind(13, std::int64_t{row.imported})
      .bind(14, row.content_hash())
      .run();
}

void Layer::drop_damaged() {
  if (damaged_rows_.empty() || !writable_) return;
  const auto rows = std::exchange(damaged_rows_, {});
  try {
    write([&] {
      for (const auto& [sql, id] : rows) db_->prepare(sql.c_str()).bind(1, id).run();
    });
  } catch (const SqliteError&) {  // the next writer of the key replaces it
  }
}

void Layer::drop_other_versions() {
  const std::string ours = fmt::format("\n{}={}\n", kVersionTag, TILEWRIGHT_VERSION_STRING);
  const std::string any = fmt::format("\n{}=", kVersionTag);
  for (const char* sql :
       {"DELETE FROM binaries WHERE instr(char(10)||transcript,?1)>0 AND instr(char(10)||transcript,?2)=0",
        "DELETE FROM problems WHERE instr(char(10)||device,?1)>0 AND instr(char(10)||device,?2)=0"})
    db_->prepare(sql).bind(1, any).bind(2, ours).run();
  db_->prepare("DELETE FROM compilers WHERE library<>?").bind(1, TILEWRIGHT_VERSION_STRING).run();
}

void Layer::rebuild_indexes() {
  // REINDEX would stop at the second row of a key, which a store adds when it does not find the first.
  constexpr std::pair<const char*, const char*> kKeys[] = {{"problems", "hash"},
                                                           {"choices", "problem"},
                                                           {"binaries", "key"},
                                                           {"environments", "hash"},
                                                           {"uses", "id"},
                                                           {"builds", "key"},
                                                           {"lists", "problem"},
                                                           {"candidates", "problem,place"},
                                                           {"compilers", "name,library"}};
  end_reading();
  Transaction transaction(*db_);                             // not write(), which first writes the marks, by an index
  std::vector<std::pair<std::string, std::string>> indexes;  // name, text
  {
    Statement rows = db_->prepare("SELECT name,sql FROM sqlite_schema WHERE type='index'");
    while (rows.step()) indexes.emplace_back(rows.text(0), rows.text(1));
  }
  for (const auto& [name, sql] : indexes) db_->exec(("DROP INDEX " + name).c_str());
  for (const auto& [table, key] : kKeys)
    db_->exec(fmt::format("DELETE FROM {0} WHERE rowid NOT IN (SELECT max(rowid) FROM {0} GROUP BY {1})", table, key)
                  .c_str());
  for (const auto& [name, sql] : indexes) db_->exec(sql.c_str());
  transaction.commit();
}

// ---- size

std::int64_t Layer::file_bytes() { return db_->integer("PRAGMA page_count") * db_->integer("PRAGMA page_size"); }

std::int64_t Layer::used_bytes() {
  return file_bytes() - db_->integer("PRAGMA freelist_count") * db_->integer("PRAGMA page_size");
}

bool Layer::evict_one() {
  Statement oldest = db_->prepare("SELECT rowid,CAST(id AS TEXT) FROM uses ORDER BY sequence LIMIT 1");
  std::string id;
  if (oldest.step()) {
    const std::int64_t row = oldest.integer(0);
    id = oldest.text(1);
    oldest.reset();
    db_->prepare("DELETE FROM uses WHERE rowid=?").bind(1, row).run();
  } else {
    // Only rows without a place in the order are left.
    Statement any = db_->prepare(
        "SELECT CAST(key AS TEXT) FROM binaries UNION ALL SELECT CAST(hash AS TEXT) FROM problems LIMIT 1");
    if (!any.step()) return false;
    id = any.text(0);
  }
  for (const char* sql :
       {"DELETE FROM binaries WHERE key=?", "DELETE FROM builds WHERE key=?", "DELETE FROM choices WHERE problem=?",
        "DELETE FROM measurements WHERE problem=?", "DELETE FROM lists WHERE problem=?",
        "DELETE FROM candidates WHERE problem=?", "DELETE FROM problems WHERE hash=?"}) {
    db_->prepare(sql).bind(1, id).run();
  }
  return true;
}

void Layer::shrink_to(std::int64_t bytes) {
  while (used_bytes() > bytes && evict_one()) {
  }
  if (used_bytes() <= bytes) return;
  // The rows that are left belong to no problem or binary.
  for (const char* sql : {"DELETE FROM measurements", "DELETE FROM choices", "DELETE FROM environments",
                          "DELETE FROM builds", "DELETE FROM lists", "DELETE FROM candidates", "DELETE FROM compilers"})
    db_->exec(sql);
}

void Layer::evict_for(std::int64_t bytes) {
  const std::int64_t wanted = bytes + kRowOverhead;
  if (used_bytes() + wanted > cap_) {
    // A sixteenth more than needed, so that a full cache does not evict at every store.
    shrink_to(std::max<std::int64_t>(0, cap_ - cap_ / 16 - wanted));
  }
  // The file exceeds the cap only after the cap was lowered. It shrinks step by step; gc() does it at once.
  const std::int64_t excess = file_bytes() - cap_;
  if (excess > 0) db_->exec("PRAGMA incremental_vacuum(256)");
}

}  // namespace tilewright::cache
