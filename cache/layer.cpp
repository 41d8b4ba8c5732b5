// SPDX-License-Identifier: Apache-2.0
#include "cache/layer.h"

#include <algorithm>
#include <limits>
#include <set>

#include "cache/key.h"

namespace tilewright::cache {
namespace {

constexpr std::size_t kMaxMarks = 4096;
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

Layer::Layer(std::unique_ptr<Database> db, std::string name, std::int64_t cap, bool writable)
    : db_(std::move(db)), name_(std::move(name)), cap_(cap), writable_(writable) {
  if (name_ == ":memory:") return;
  id_ = file_id(name_);
  wal_ = file_id(name_ + "-wal");
  shm_ = file_id(name_ + "-shm");
}

Layer::~Layer() {
  if (db_ == nullptr || !writable_ || marks_.empty()) return;
  try {
    db_->set_deadline(Clock::now() + std::chrono::milliseconds(200));
    if (!moved()) write([] {});
  } catch (const std::exception&) {  // the order of use is a hint
  }
}

bool Layer::moved() const {
  if (name_ == ":memory:") return false;
  if (db_->moved() || !(file_id(name_) == id_)) return true;
  // The side files of an open WAL database live as long as its last connection.
  return wal_.exists && (!(file_id(name_ + "-wal") == wal_) || !(file_id(name_ + "-shm") == shm_));
}

void Layer::abandon() {
  if (db_) db_->abandon();
  (void)db_.release();
}

void Layer::note_damage(const char* table, const char* column, const std::string& id) {
  ++damaged_;
  damaged_rows_.emplace_back(std::string("DELETE FROM ") + table + " WHERE " + column + "=?", id);
}

void Layer::mark_used(const std::string& id) {
  if (writable_ && (marks_.size() < kMaxMarks || marks_.count(id))) marks_[id] = ++next_mark_;
}

// ---- reading

std::optional<Binary> Layer::find_binary(const Key& key) {
  auto found = load_binary(key.hash());
  if (!found) return std::nullopt;
  if (found->key.fields() == key.fields()) return std::move(found->binary);
  note_damage("binaries", "key", key.hash());
  return std::nullopt;
}

std::vector<OtherBuild> Layer::other_builds(const Key& key) {
  const std::string own = key.hash(), kernel = kernel_hash(key);
  std::vector<std::string> hashes;
  Statement rows = db_->prepare("SELECT key FROM builds WHERE kernel=? AND key<>? ORDER BY rowid DESC LIMIT ?");
  rows.bind(1, kernel).bind(2, own).bind(3, std::int64_t{kMaxBuilds});
  while (rows.step()) hashes.push_back(rows.text(0));
  std::vector<OtherBuild> found;
  for (const std::string& hash : hashes) {
    // The row of `builds` has no hash of its own: what counts is the key that the binary's hash covers.
    auto build = load_binary(hash);
    if (build && kernel_hash(build->key) == kernel) found.push_back(std::move(*build));
  }
  return found;
}

std::optional<OtherBuild> Layer::load_binary(const std::string& hash) {
  try {
    Statement row = db_->prepare("SELECT transcript,metadata,hash,image FROM binaries WHERE key=?");
    if (!row.bind(1, hash).step()) return std::nullopt;
    const std::string transcript = row.text(0), metadata = row.text(1), content = row.text(2);
    const auto image = row.bytes(3);
    Binary binary;
    // The hash is checked first: nothing may parse, let alone load, what is damaged.
    if (binary_hash(hash, transcript, metadata, image) == content && decode_metadata(metadata, binary)) {
      if (auto key = parse_transcript(transcript); key && key->hash() == hash) {
        binary.image.assign(image.begin(), image.end());
        mark_used(hash);
        return OtherBuild{std::move(*key), std::move(binary)};
      }
    }
  } catch (const BadValue&) {
  }
  note_damage("binaries", "key", hash);
  return std::nullopt;
}

std::string Layer::environment(const std::string& hash) {
  if (hash.empty()) return {};
  try {
    Statement row = db_->prepare("SELECT text FROM environments WHERE hash=?");
    if (!row.bind(1, hash).step()) return {};
    const std::string text = row.text(0);
    return sha256_hex(text) == hash ? text : std::string();
  } catch (const BadValue&) {
    return {};  // informative only
  }
}

StoredChoice Layer::stored_choice(std::string problem, const Candidate& candidate, const ChoiceRow& row) {
  return {std::move(problem),           candidate,   row.microseconds, row.first, row.first_microseconds,
          environment(row.environment), row.imported};
}

std::optional<StoredChoice> Layer::find_choice(const std::string& device, std::string_view problem) {
  const std::string hash = problem_hash(device, problem);
  try {
    Statement rows = db_->prepare("SELECT " TILEWRIGHT_CHOICE_COLUMNS ",c.hash FROM choices c WHERE c.problem=?");
    if (!rows.bind(1, hash).step()) return std::nullopt;
    const ChoiceRow row = read_choice(rows);
    const auto candidate = decode_candidate(row.candidate);
    if (rows.text(7) == row.content_hash() && row.valid() && candidate) {
      mark_used(hash);
      return stored_choice(std::string(problem), *candidate, row);
    }
  } catch (const BadValue&) {
  }
  note_damage("choices", "problem", hash);
  return std::nullopt;
}

// The choice under the cursor of a statement with TILEWRIGHT_CHOICE_COLUMNS, its hash, device and problem.
std::optional<StoredChoice> Layer::verified_choice(Statement& rows) {
  try {
    const ChoiceRow row = read_choice(rows);
    const auto candidate = decode_candidate(row.candidate);
    const std::string problem = rows.text(9);
    if (rows.text(7) == row.content_hash() && row.problem == problem_hash(rows.text(8), problem) && row.valid() &&
        candidate) {
      return stored_choice(problem, *candidate, row);
    }
  } catch (const BadValue&) {
  }
  ++damaged_;
  return std::nullopt;
}

#define TILEWRIGHT_SELECT_CHOICES \
  "SELECT " TILEWRIGHT_CHOICE_COLUMNS ",c.hash,p.device,p.problem FROM problems p JOIN choices c ON c.problem=p.hash"

std::vector<StoredChoice> Layer::choices(const std::string& device, std::string_view prefix) {
  std::vector<StoredChoice> found;
  Statement rows = db_->prepare(TILEWRIGHT_SELECT_CHOICES
                                " WHERE p.device=? AND p.problem>=? AND p.problem<? ORDER BY p.problem LIMIT ?");
  // No UTF-8 text has a byte 0xff, so this bound is above every text with the prefix.
  rows.bind(1, device).bind(2, prefix).bind(3, std::string(prefix) + '\xff').bind(4, std::int64_t{kMaxChoices});
  while (rows.step()) {
    if (auto choice = verified_choice(rows)) found.push_back(std::move(*choice));
  }
  return found;
}

std::vector<std::pair<Key, StoredChoice>> Layer::all_choices() {
  std::vector<std::pair<Key, StoredChoice>> found;
  Statement rows = db_->prepare(TILEWRIGHT_SELECT_CHOICES " ORDER BY p.problem");
  while (rows.step()) {
    auto choice = verified_choice(rows);
    const auto device = choice ? parse_transcript(rows.text(8)) : std::nullopt;
    if (device) found.emplace_back(*device, std::move(*choice));
  }
  return found;
}

std::vector<Outcome> Layer::outcomes(const std::string& device, std::string_view problem) {
  const std::string hash = problem_hash(device, problem);
  std::vector<Outcome> found;
  std::set<std::string> seen;
  Statement rows = db_->prepare("SELECT " TILEWRIGHT_MEASUREMENT_COLUMNS
                                ",m.hash FROM measurements m WHERE m.problem=? ORDER BY m.imported,m.id DESC");
  rows.bind(1, hash);
  while (rows.step()) {
    try {
      const MeasurementRow row = read_measurement(rows);
      const std::string content = row.content_hash();
      auto outcome = to_outcome(row);
      if (rows.text(13) == content && outcome) {
        if (seen.insert(row.candidate).second) found.push_back(std::move(*outcome));
        continue;
      }
    } catch (const BadValue&) {
    }
    ++damaged_;
  }
  std::reverse(found.begin(), found.end());  // in the order they were seen
  if (!found.empty()) mark_used(hash);
  return found;
}

// ---- writing

void Layer::write(const std::function<void()>& body) {
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
        "DELETE FROM measurements WHERE problem=?", "DELETE FROM problems WHERE hash=?"}) {
    db_->prepare(sql).bind(1, id).run();
  }
  return true;
}

void Layer::shrink_to(std::int64_t bytes) {
  while (used_bytes() > bytes && evict_one()) {
  }
  if (used_bytes() <= bytes) return;
  // What is left belongs to no problem or binary.
  for (const char* sql :
       {"DELETE FROM measurements", "DELETE FROM choices", "DELETE FROM environments", "DELETE FROM builds"})
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
