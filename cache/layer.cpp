// SPDX-License-Identifier: Apache-2.0
// Layer's reading: every row verified before it is believed.
#include "cache/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cache/key.h"

namespace tilewright::cache {
namespace {

constexpr std::size_t kMaxMarks = 4096;

// Columns of the rows of a table whose problems, in its column `problem`, a filter lets through. With a limit in the
// order of use, up to the last row that is wanted.
Statement filtered(Database& db, const char* columns, const char* table, const char* problem,
                   const StoreFilter& filter) {
  const bool some = filter.limit > 0;
  Statement rows =
      db.prepare(fmt::format("SELECT {0} FROM {1} WHERE"
                             " (?2='' OR instr(char(10)||p.device,char(10)||'target='||?2||char(10))>0) AND (?3='' OR "
                             "instr(p.problem,?3)>0)"
                             " ORDER BY {2} LIMIT ?1",
                             columns,
                             some ? fmt::format("uses u CROSS JOIN {0} ON {1}=u.id CROSS JOIN problems p ON p.hash={1}",
                                                table, problem)
                                  : fmt::format("problems p JOIN {0} ON {1}=p.hash", table, problem),
                             some ? "u.sequence DESC" : "p.problem")
                     .c_str());
  rows.bind(1, some ? filter.limit : std::int64_t{-1}).bind(2, filter.target).bind(3, filter.problem);
  return rows;
}

}  // namespace

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

void Layer::begin_reading() {
  if (reading_) return;
  db_->exec("BEGIN");
  reading_ = true;
}

void Layer::end_reading() {
  // Some errors have already ended it.
  if (std::exchange(reading_, false) && db_->in_transaction()) db_->exec("COMMIT");
}

std::optional<Binary> Layer::find_binary(const Key& key) {
  const std::string transcript = key.transcript();
  auto found = load_binary(key.hash(), &transcript);
  if (!found) return std::nullopt;
  return std::move(found->binary);
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

std::optional<OtherBuild> Layer::load_binary(const std::string& hash, const std::string* wanted) {
  try {
    Statement row = db_->prepare("SELECT transcript,metadata,hash,image FROM binaries WHERE key=?");
    if (!row.bind(1, hash).step()) return std::nullopt;
    const std::string transcript = row.text(0), metadata = row.text(1), content = row.text(2);
    const auto image = row.bytes(3);
    Binary binary;
    // The hash is checked first: nothing may parse, let alone load, what is damaged.
    if (binary_hash(hash, transcript, metadata, image) == content && decode_metadata(metadata, binary)) {
      // Keys are equal exactly when their transcripts are.
      std::optional<Key> key;
      if (!wanted && (key = parse_transcript(transcript)) && key->hash() != hash) key.reset();
      if (wanted ? transcript == *wanted : key.has_value()) {
        binary.image.assign(image.begin(), image.end());
        mark_used(hash);
        return OtherBuild{key ? std::move(*key) : Key(), std::move(binary)};
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

std::vector<StoredChoice> Layer::choices(const std::string& device, std::string_view prefix) {
  std::vector<StoredChoice> found;
  Statement rows = db_->prepare("SELECT " TILEWRIGHT_CHOICE_COLUMNS
                                ",c.hash,p.device,p.problem FROM problems p JOIN choices c ON c.problem=p.hash"
                                " WHERE p.device=? AND p.problem>=? AND p.problem<? ORDER BY p.problem LIMIT ?");
  // No UTF-8 text has a byte 0xff, so this bound is above every text with the prefix.
  rows.bind(1, device).bind(2, prefix).bind(3, std::string(prefix) + '\xff').bind(4, std::int64_t{kMaxChoices});
  while (rows.step()) {
    if (auto choice = verified_choice(rows)) found.push_back(std::move(*choice));
  }
  return found;
}

std::vector<std::pair<Key, StoredChoice>> Layer::all_choices(const StoreFilter& filter) {
  std::vector<std::pair<Key, StoredChoice>> found;
  Statement rows =
      filtered(*db_, TILEWRIGHT_CHOICE_COLUMNS ",c.hash,p.device,p.problem", "choices c", "c.problem", filter);
  while (rows.step()) {
    auto choice = verified_choice(rows);
    const auto device = choice ? parse_transcript(rows.text(8)) : std::nullopt;
    if (device) found.emplace_back(*device, std::move(*choice));
  }
  return found;
}

std::optional<CandidateList> Layer::load_list(const std::string& device, std::string_view problem) {
  const std::string hash = problem_hash(device, problem);
  try {
    const auto read = read_list(*db_, hash);
    if (!read) return std::nullopt;
    if (auto list = read->intact ? to_list(read->row) : std::nullopt) {
      list->problem = problem;
      return list;
    }
  } catch (const BadValue&) {
  }
  note_damage("lists", "problem", hash);
  damaged_rows_.emplace_back("DELETE FROM candidates WHERE problem=?", hash);
  return std::nullopt;
}

std::optional<CandidateList> Layer::find_list(const std::string& device, std::string_view problem) {
  auto list = load_list(device, problem);
  if (list) mark_used(problem_hash(device, problem));
  return list;
}

std::vector<CandidateList> Layer::lists(const std::string& device, std::string_view prefix) {
  std::vector<CandidateList> found;
  Statement rows = db_->prepare(
      "SELECT p.problem FROM problems p JOIN lists l ON l.problem=p.hash WHERE p.device=? AND p.problem>=? AND"
      " p.problem<? ORDER BY p.problem LIMIT ?");
  rows.bind(1, device).bind(2, prefix).bind(3, std::string(prefix) + '\xff').bind(4, std::int64_t{kMaxChoices});
  while (rows.step())
    if (auto list = load_list(device, rows.text(0))) found.push_back(std::move(*list));
  return found;
}

std::vector<std::pair<Key, CandidateList>> Layer::all_lists(const StoreFilter& filter) {
  std::vector<std::pair<Key, CandidateList>> found;
  Statement rows = filtered(*db_, "p.device,p.problem", "lists l", "l.problem", filter);
  while (rows.step()) {
    try {
      auto list = load_list(rows.text(0), rows.text(1));
      const auto device = list ? parse_transcript(rows.text(0)) : std::nullopt;
      if (device) found.emplace_back(*device, std::move(*list));
    } catch (const BadValue&) {  // a damaged row, which verify() reports
    }
  }
  return found;
}

std::optional<StoredCompiler> Layer::find_compiler(const std::string& name, const std::string& library) {
  Statement rows =
      db_->prepare("SELECT " TILEWRIGHT_COMPILER_COLUMNS ",k.hash FROM compilers k WHERE k.name=? AND k.library=?");
  if (!rows.bind(1, name).bind(2, library).step()) return std::nullopt;
  try {
    CompilerRow row = read_compiler(rows);
    if (row.content_hash() == rows.text(7) && row.valid()) return std::move(row.compiler);
  } catch (const BadValue&) {
  }
  note_damage("compilers", "name", name);
  return std::nullopt;
}

std::vector<OtherVersion> Layer::versions() {
  std::map<std::string, OtherVersion> found;
  const auto count = [&](const char* rows, std::int64_t OtherVersion::*field) {
    // From the version's field on: the rest of a transcript is long.
    Statement groups = db_->prepare(rows);
    while (groups.step()) {
      try {
        std::string version = field_of(groups.text(0), kVersionTag);
        if (version.empty()) continue;
        OtherVersion& all = found[version];
        all.version = std::move(version);
        all.*field += groups.integer(1);
      } catch (const BadValue&) {  // damaged rows, which verify() reports
      }
    }
  };
  count(
      "SELECT substr(transcript,instr(char(10)||transcript,char(10)||'library='),64) AS f,count(*) FROM binaries"
      " GROUP BY f",
      &OtherVersion::binaries);
  count(
      "SELECT substr(p.device,instr(char(10)||p.device,char(10)||'library='),64) AS f,count(*)"
      " FROM (SELECT problem FROM choices UNION ALL SELECT problem FROM lists) c JOIN problems p ON p.hash=c.problem"
      " GROUP BY f",
      &OtherVersion::choices);
  count(
      "SELECT substr(p.device,instr(char(10)||p.device,char(10)||'library='),64) AS f,count(*)"
      " FROM measurements m JOIN problems p ON p.hash=m.problem GROUP BY f",
      &OtherVersion::measurements);
  std::vector<OtherVersion> all;
  for (auto& [version, rows] : found) {
    rows.layer = name_;
    rows.writable = writable_;
    all.push_back(std::move(rows));
  }
  return all;
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

}  // namespace tilewright::cache
