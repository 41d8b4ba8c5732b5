// SPDX-License-Identifier: Apache-2.0
// Store's maintenance: verify, gc, export, merge. Looking at single rows is in listing.cpp.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cache/file/schema.h"
#include "cache/key.h"
#include "cache/store_impl.h"
#include "cache/transfer.h"
#include "support/must_be.h"

namespace tilewright {

using namespace cache;

namespace {

// Says what is wrong with the row under the cursor; empty if nothing is.
using RowCheck = std::string (*)(Statement& row, Database& db);

std::string check_binary(Statement& row, Database&) {
  const std::string key = row.text(0), transcript = row.text(1), metadata = row.text(2);
  const auto parsed = parse_transcript(transcript);
  Binary binary;
  if (binary_hash(key, transcript, metadata, row.bytes(4)) != row.text(3)) return "does not match its content hash";
  if (!parsed || parsed->hash() != key) return "has a key that is not its transcript's hash";
  return decode_metadata(metadata, binary) ? "" : "has metadata that cannot be read";
}

std::string check_problem(Statement& row, Database&) {
  return problem_hash(row.text(1), row.text(2)) == row.text(0) ? "" : "does not match its hash";
}

std::string check_choice(Statement& row, Database&) {
  const ChoiceRow choice = read_choice(row);
  if (choice.content_hash() != row.text(7)) return "does not match its content hash";
  if (!choice.valid()) return "has a value out of range";
  return row.integer(8) != 0 ? "" : "belongs to no problem";
}

std::string check_measurement(Statement& row, Database&) {
  const MeasurementRow m = read_measurement(row);
  if (m.content_hash() != row.text(13)) return "does not match its content hash";
  if (!m.valid()) return "has a value out of range";
  return row.integer(14) != 0 ? "" : "belongs to no problem";
}

std::string check_environment(Statement& row, Database&) {
  return sha256_hex(row.text(1)) == row.text(0) ? "" : "does not match its hash";
}

// Of a list and its candidates.
std::string check_list(Statement& row, Database& db) {
  const auto read = read_list(db, row.text(0));
  if (!read || !read->intact) return "does not match its content hash";
  if (!to_list(read->row)) return "has a value out of range";
  return row.integer(1) != 0 ? "" : "belongs to no problem";
}

std::string check_candidate(Statement& row, Database&) { return row.integer(0) != 0 ? "" : "belongs to no list"; }

std::string check_compiler(Statement& row, Database&) {
  const CompilerRow compiler = read_compiler(row);
  if (compiler.content_hash() != row.text(7)) return "does not match its content hash";
  return compiler.valid() ? "" : "has a value out of range";
}

std::string check_build(Statement& row, Database&) {
  (void)row.text(1);
  const auto key = row.integer(2) != 0 ? parse_transcript(row.text(3)) : std::nullopt;
  return key && kernel_hash(*key) == row.text(0) ? "" : "belongs to no binary";
}

std::string check_use(Statement& row, Database&) {
  (void)row.text(0);
  return row.integer(1) >= 0 ? "" : "has a negative sequence number";
}

struct TableCheck {
  const char* table;
  const char* one;  // the row of an id
  RowCheck check;
};
// Problems and lists come before the rows that refer to them, so that one repair finds all that is left alone.
constexpr TableCheck kTables[] = {
    {"binaries", "SELECT key,transcript,metadata,hash,image FROM binaries WHERE rowid=?", check_binary},
    {"problems", "SELECT hash,device,problem FROM problems WHERE rowid=?", check_problem},
    {"choices",
     "SELECT " TILEWRIGHT_CHOICE_COLUMNS
     ",c.hash,EXISTS(SELECT 1 FROM problems p WHERE p.hash=c.problem) FROM choices c WHERE rowid=?",
     check_choice},
    {"measurements",
     "SELECT " TILEWRIGHT_MEASUREMENT_COLUMNS
     ",m.hash,EXISTS(SELECT 1 FROM problems p WHERE p.hash=m.problem) FROM measurements m WHERE rowid=?",
     check_measurement},
    {"lists", "SELECT l.problem,EXISTS(SELECT 1 FROM problems p WHERE p.hash=l.problem) FROM lists l WHERE rowid=?",
     check_list},
    {"candidates", "SELECT EXISTS(SELECT 1 FROM lists l WHERE l.problem=c.problem) FROM candidates c WHERE rowid=?",
     check_candidate},
    {"compilers", "SELECT " TILEWRIGHT_COMPILER_COLUMNS ",k.hash FROM compilers k WHERE rowid=?", check_compiler},
    {"environments", "SELECT hash,text FROM environments WHERE rowid=?", check_environment},
    {"builds",
     "SELECT v.kernel,v.key,b.key IS NOT NULL,coalesce(b.transcript,'') FROM builds v LEFT JOIN binaries b ON"
     " b.key=v.key WHERE v.rowid=?",
     check_build},
    {"uses", "SELECT id,sequence FROM uses WHERE rowid=?", check_use},
};

// Says what is wrong with a row; empty if it is sound, or gone by now.
std::string check_row(Database& db, const TableCheck& table, std::int64_t id) {
  try {
    Statement row = db.prepare(table.one);
    return row.bind(1, id).step() ? table.check(row, db) : "";
  } catch (const BadValue& error) {
    return error.what();
  } catch (const SqliteError& error) {
    if (!error.too_big()) throw;
    return "holds a value larger than any that was stored";
  }
}

void verify_rows(Layer& layer, bool repair, VerifyReport& report) {
  for (const TableCheck& table : kTables) {
    std::vector<std::int64_t> damaged;
    for (std::int64_t id : row_ids(layer.db(), fmt::format("SELECT rowid FROM {}", table.table).c_str())) {
      ++report.checked;
      const std::string what = check_row(layer.db(), table, id);
      if (what.empty()) continue;
      report.damaged.push_back(fmt::format("{}: {} row {} {}", layer.name(), table.table, id, what));
      damaged.push_back(id);
    }
    if (!repair || damaged.empty()) continue;
    layer.write([&] {
      for (std::int64_t id : damaged) {
        layer.db().prepare(fmt::format("DELETE FROM {} WHERE rowid=?", table.table).c_str()).bind(1, id).run();
      }
    });
  }
}

// Returns whether SQLite finds the file's structure sound.
bool verify_structure(Layer& layer, VerifyReport& report) {
  Statement rows = layer.db().prepare("PRAGMA integrity_check(20)");
  bool sound = true;
  while (rows.step()) {
    const std::string line = rows.text(0);
    if (line == "ok") continue;
    sound = false;
    report.damaged.push_back(fmt::format("{}: {}", layer.name(), line));
  }
  return sound;
}

// Indexes that do not fit their tables are made anew, which leaves the rows as they are.
bool mend_indexes(Layer& layer) {
  try {
    layer.rebuild_indexes();
  } catch (const SqliteError&) {
    return false;
  }
  VerifyReport again;
  return verify_structure(layer, again);
}

bool verify_layer(Layer& layer, bool repair, VerifyReport& report) {
  try {
    bool sound = verify_structure(layer, report);
    if (!sound && repair && layer.writable()) sound = mend_indexes(layer);
    verify_rows(layer, repair && sound && layer.writable(), report);
    return sound;
  } catch (const SqliteError& error) {
    if (!error.corrupt()) throw;
    report.damaged.push_back(fmt::format("{}: {}", layer.name(), error.what()));
    return false;
  }
}

void check_cap(std::int64_t cap) {
  if (cap < 0) throw must_be("cap", cap, "0 or more bytes");
}

std::string cannot_write() { return std::string("cannot be written: ") + std::strerror(errno); }

// Gives a finished file its name. Without `replace`, link() fails if the name is taken meanwhile.
void publish(const std::string& from, const std::string& to, bool replace) {
  const int rc = replace ? rename(from.c_str(), to.c_str()) : link(from.c_str(), to.c_str());
  if (rc != 0) throw Error(ErrorCode::io, "export", to, cannot_write());
}

// Where an export may go: nowhere but to a free name, or with `replace` to that of a plain file that nobody has open.
void check_target(const std::string& target, const FileId& own, bool replace) {
  const auto refuse = [&](const std::string& why) { throw Error(ErrorCode::io, "export", target, why); };
  for (const char* side : {"-wal", "-journal"}) {
    // SQLite would take it for the new file's.
    if (file_id(target + side).exists)
      refuse("must not have " + target + side + " beside it: that is a cache in use, or one whose writer died");
  }
  struct stat s {};
  if (lstat(target.c_str(), &s) != 0) return;
  if (!replace) refuse("exists; choose another path, or replace it (--force)");
  if (!S_ISREG(s.st_mode)) refuse("must be a regular file, or a path where nothing is yet");
  if (file_id(target) == own) refuse("must be another file than the cache itself");
}

// A file under a temporary name beside its later one; removed unless it was renamed.
class PartialFile {
 public:
  explicit PartialFile(const std::string& target) : path_(target + fmt::format(".part-{}", getpid())) {
    if (mknod(path_.c_str(), S_IFREG | 0600, 0) != 0) throw Error(ErrorCode::io, "export", target, cannot_write());
  }
  ~PartialFile() {
    for (const char* side : {"", "-journal"}) unlink((path_ + side).c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

VerifyReport Store::verify(bool repair) {
  return impl().maintain([&] {
    VerifyReport report;
    if (!impl_->memory_only() && impl_->degraded_) report.damaged.push_back(impl_->reason_);
    for (Impl::Layer* layer : impl_->layers()) {
      if (verify_layer(*layer, repair, report) || layer != impl_->file_.get()) continue;
      if (!repair || !layer->writable()) continue;
      // Every row carries its own hash, so whatever can still be read may be taken over into a new file.
      const std::string path = layer->name();
      const FileId id = layer->id();
      impl_->close_file(false);
      const RenameLock lock(path + "-lock", 10);
      const std::string kept = quarantine(path, id);
      Impl::Layer& fresh = impl_->home();
      if (kept.empty()) continue;
      try {
        Layer old(std::make_unique<Database>(kept, Database::Mode::read_only), kept, 0, false);
        const MergeReport saved = transfer(old, fresh, {});
        report.damaged.push_back(
            fmt::format("{}: rebuilt with {} rows; the damaged file is {}", path, saved.added, kept));
      } catch (const SqliteError&) {
        report.damaged.push_back(fmt::format("{}: started anew; the damaged file is {}", path, kept));
      }
    }
    return report;
  });
}

std::int64_t Store::gc(std::int64_t cap, bool stale) {
  check_cap(cap);
  return impl().maintain([&] {
    Impl::Layer& layer = impl_->home();
    const std::int64_t before = layer.file_bytes();
    layer.write([&] {
      if (stale) layer.drop_other_versions();
      for (const char* sql : {
               "DELETE FROM choices WHERE problem NOT IN (SELECT hash FROM problems)",
               "DELETE FROM measurements WHERE problem NOT IN (SELECT hash FROM problems)",
               "DELETE FROM lists WHERE problem NOT IN (SELECT hash FROM problems)",
               "DELETE FROM candidates WHERE problem NOT IN (SELECT problem FROM lists)",
               "DELETE FROM builds WHERE key NOT IN (SELECT key FROM binaries)",
               "DELETE FROM uses WHERE id NOT IN (SELECT hash FROM problems UNION ALL SELECT key FROM binaries)",
               "INSERT OR IGNORE INTO uses(id,sequence) SELECT hash,0 FROM problems",
               "INSERT OR IGNORE INTO uses(id,sequence) SELECT key,0 FROM binaries",
           }) {
        layer.db().exec(sql);
      }
      layer.shrink_to(cap);
      layer.db().exec(
          "DELETE FROM environments WHERE hash NOT IN"
          " (SELECT environment FROM choices UNION ALL SELECT environment FROM measurements)");
    });
    layer.db().exec("PRAGMA incremental_vacuum");
    layer.db().exec("PRAGMA wal_checkpoint(TRUNCATE)");
    return before - layer.file_bytes();
  });
}

void Store::export_to(const std::string& path, bool with_binaries, bool replace) {
  impl().maintain([&] {
    const std::string target = std::filesystem::absolute(path).lexically_normal().string();
    check_target(target, impl_->file_ ? impl_->file_->id() : FileId(), replace);
    const PartialFile partial(target);
    const std::string real = std::filesystem::canonical(partial.path()).string();
    try {
      // A rollback journal: the finished file is one file, readable from a read-only directory.
      Layer file(std::make_unique<Database>(real, Database::Mode::read_write), real,
                 std::numeric_limits<std::int64_t>::max() / 4, true);
      (void)adopt(file.db());
      TransferRules rules;
      rules.binaries = with_binaries;
      rules.step = [&] { impl_->be_patient(); };
      std::vector<Impl::Layer*> own;
      if (impl_->file_ || impl_->memory_only()) own.push_back(&impl_->home());
      if (impl_->degraded_) own.push_back(impl_->memory_.get());
      for (Impl::Layer* layer : own) transfer(*layer, file, rules);
    } catch (const SqliteError& error) {
      if (error.file() != real) throw;
      throw Error(ErrorCode::io, "export", path, std::string("cannot be written: ") + error.what());
    }
    if (chmod(real.c_str(), 0644) != 0) throw Error(ErrorCode::io, "export", path, cannot_write());
    publish(real, target, replace);
    return true;
  });
}

MergeReport Store::merge_from(const std::string& path, bool binaries) {
  return impl().maintain([&] {
    Impl::Layer& layer = impl_->home();
    if (!layer.writable()) throw Error(ErrorCode::io, "cache", impl_->path_, "must be writable");
    if (file_id(path).exists && layer.name() != ":memory:" && file_id(path) == layer.id()) {
      throw must_be("store", path, "another file than the cache itself");
    }
    const auto source = open_source(path);
    TransferRules rules;
    rules.binaries = binaries;
    rules.imported = !binaries;
    if (!binaries) rules.most_rows = kImportRows;
    rules.step = [&] {
      impl_->be_patient();
      source->db().set_deadline(Clock::time_point::max());
    };
    return transfer(*source, layer, rules);
  });
}

}  // namespace tilewright
