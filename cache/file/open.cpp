// SPDX-License-Identifier: Apache-2.0
#include "cache/file/open.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include <tilewright/error.h>

#include "cache/file/claims.h"
#include "cache/file/schema.h"
#include "cache/file/snapshot.h"
#include "cache/file/vfs_file.h"

namespace tilewright::cache {
namespace {

// Checking the structure takes 0.4 ms per MB. Larger files are checked by verify() only; rows carry their own hashes.
constexpr std::int64_t kCheckBytes = 8 << 20;

struct Damaged {
  std::string what;
};

// How to read a file that another process has open for writing.
enum class IfInUse {
  share_locks,  // a store to be read for long: read it through SQLite's locks, or not at all
  copy,         // one look, perhaps at a stranger's file: read a private copy
};

Opened fail(Opened opened, Trouble trouble, std::string reason) {
  opened.layer.reset();
  opened.trouble = trouble;
  opened.reason = std::move(reason);
  return opened;
}

std::string foreign(const std::string& path) {
  return fmt::format("{} is a database of another application and is left untouched; choose another path", path);
}
std::string no_database(const std::string& path) {
  return fmt::format("{} is not a cache and is left untouched; choose another path, or delete it", path);
}
std::string newer(const std::string& path, std::uint32_t version) {
  return fmt::format("{} has format version {}, this library knows {}; update the library or choose another path", path,
                     version, schema_version());
}

// Why SQLite must not even open a file, judged by its first bytes and by the files beside it.
std::string untouchable(const std::string& path, bool allow_shared) {
  if (auto refusal = side_file_refusal(path, allow_shared); !refusal.empty()) return refusal;
  const std::string journal = path + "-journal";
  if (file_id(journal).exists && names_super_journal(journal)) {
    return fmt::format(
        "{} names a super-journal, which no cache has: opening the database would delete another file; remove the "
        "journal if you know where both come from",
        journal);
  }
  const auto header = read_header(path);
  if (!header || file_id(journal).exists) return {};  // a hot journal may change the first bytes
  // A damaged cache looks like this too, but a store that compiled has left a lock beside its file.
  if (header->foreign && !file_id(path + "-lock").exists) return no_database(path);
  if (!header->sqlite) return {};
  const bool unmarked = header->application_id == 0 && header->user_version == 0 && header->pages <= 1;
  if (header->application_id != kApplicationId && !unmarked) return foreign(path);
  if (header->user_version > schema_version()) return newer(path, header->user_version);
  return {};
}

void common_settings(Database& db, Clock::time_point deadline) {
  db.set_deadline(deadline);
  db.exec("PRAGMA trusted_schema=0; PRAGMA cell_size_check=1; PRAGMA mmap_size=0; PRAGMA temp_store=2");
}

void check_structure(Database& db, const std::string& path, bool always) {
  {
    // SQLite reads a missing end as zeros. The transaction's read lock keeps the size as it is while we compare.
    db.exec("BEGIN");
    db.integer("SELECT count(*) FROM sqlite_schema");
    const bool cut = file_size(path + "-wal") <= 0 && db.truncated();
    db.exec("COMMIT");
    if (cut) throw Damaged{"its end is missing"};
  }
  const std::int64_t bytes = db.integer("PRAGMA page_count") * db.integer("PRAGMA page_size");
  if (!always && bytes > kCheckBytes) return;
  const std::string result = db.text("PRAGMA quick_check(1)");
  if (result != "ok") throw Damaged{result};
}

// Reads a table after switching, because on some file systems the pragma answers "wal" and the first access fails.
void choose_journal(Database& db, bool wal) {
  db.exec("PRAGMA journal_size_limit=4194304; PRAGMA synchronous=FULL");
  try {
    if (wal && db.text("PRAGMA journal_mode=WAL") == "wal") {
      db.integer("SELECT count(*) FROM uses WHERE sequence<0");
      db.exec("PRAGMA synchronous=NORMAL");  // a power failure may lose the last rows, never the file
      return;
    }
    if (!wal) (void)db.text("PRAGMA journal_mode=DELETE");
  } catch (const SqliteError& error) {
    if (!wal) throw;
    if (error.busy()) return;  // another process has the file open: its mode stays
    (void)db.text("PRAGMA journal_mode=DELETE");
  }
}

std::unique_ptr<Layer> open_writable(const OpenRequest& request, const Place& place, Opened& opened) {
  auto db = std::make_unique<Database>(place.path, Database::Mode::read_write);
  common_settings(*db, request.deadline);
  switch (adopt(*db)) {
    case Fit::ours: break;
    case Fit::foreign: opened = fail(std::move(opened), Trouble::lasting, foreign(place.path)); return nullptr;
    case Fit::newer:
      opened = fail(std::move(opened), Trouble::lasting,
                    newer(place.path, static_cast<std::uint32_t>(db->integer("PRAGMA user_version"))));
      return nullptr;
    case Fit::older:
    case Fit::damaged: throw Damaged{"its schema is not ours"};
  }
  check_structure(*db, place.path, request.check);
  choose_journal(*db, place.network == nullptr);
  return std::make_unique<Layer>(std::move(db), place.path, request.cap, true);
}

// A handle that can only read. Whoever wrote the file, nothing at its path or beside it is created, changed or deleted.
std::unique_ptr<Database> reading_handle(const OpenRequest& request, const std::string& path, IfInUse if_in_use) {
  if (auto refusal = irregular_side_file(path); !refusal.empty()) throw Damaged{refusal};
  const std::string journal = path + "-journal";
  if (if_in_use == IfInUse::share_locks) {
    // A log can only be read by taking part in its locking, that is, by writing to its index.
    if (file_id(path + "-wal").exists) throw Damaged{"it has a write-ahead log, which only a writer can read"};
    const bool busy = file_id(journal).exists;
    return std::make_unique<Database>(path, busy ? Database::Mode::read_only : Database::Mode::immutable);
  }
  // A journal comes and goes while a live process writes.
  const auto end = std::min(request.deadline, Clock::now() + std::chrono::milliseconds(200));
  while (file_id(journal).exists && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (file_id(journal).exists) {
    throw Damaged{fmt::format(
        "{} lies beside it: its last writer died, or is still at work. A file of your own is repaired by a command "
        "that writes it, such as cache gc; of somebody else's ask for a cache export",
        journal)};
  }
  if (file_id(path + "-wal").exists) return open_snapshot(path, request.deadline);
  return std::make_unique<Database>(path, Database::Mode::immutable);
}

std::unique_ptr<Layer> open_reading(const OpenRequest& request, const std::string& path, IfInUse if_in_use) {
  const NoWaiting no_waiting;
  auto db = reading_handle(request, path, if_in_use);
  common_settings(*db, request.deadline);
  load_schema(*db, request.deadline);
  Fit fit = inspect(*db);
  if (fit == Fit::older) {
    db = open_snapshot(path, request.deadline);
    common_settings(*db, request.deadline);
    fit = adopt(*db);
  }
  switch (fit) {
    case Fit::ours: break;
    case Fit::foreign: throw Damaged{"it is a database of another application"};
    case Fit::newer: throw Damaged{"its format version is newer than this library's; update the library"};
    case Fit::older:
    case Fit::damaged: throw Damaged{"its schema is not ours"};
  }
  db->exec("PRAGMA query_only=1");
  check_structure(*db, path, request.check);
  return std::make_unique<Layer>(std::move(db), path, 0, false);
}

Opened attempt_reading(const OpenRequest& request, Opened opened, IfInUse if_in_use) {
  try {
    opened.layer = open_reading(request, opened.path, if_in_use);
    return opened;
  } catch (const Damaged& damage) {
    return fail(std::move(opened), Trouble::lasting, fmt::format("{} cannot be used: {}", opened.path, damage.what));
  } catch (const SqliteError& error) {
    return fail(std::move(opened), error.busy() ? Trouble::transient : Trouble::lasting,
                fmt::format("{}: {}", opened.path, error.what()));
  } catch (const std::runtime_error& error) {  // BadValue, SnapshotError
    return fail(std::move(opened), Trouble::lasting, fmt::format("{}: {}", opened.path, error.what()));
  }
}

// One attempt at a file of our own. `damage` is set if the file has to be quarantined.
Opened attempt_own(const OpenRequest& request, const Place& place, Opened opened, std::string& damage) {
  try {
    opened.layer = open_writable(request, place, opened);
    return opened;
  } catch (const Damaged& damaged) {
    damage = damaged.what;
  } catch (const BadValue& error) {
    damage = error.what();
  } catch (const SqliteError& error) {
    if (error.corrupt()) {
      damage = error.what();
    } else {
      return fail(std::move(opened), error.busy() ? Trouble::transient : Trouble::lasting,
                  fmt::format("{}: {}", place.path, error.what()));
    }
  }
  return fail(std::move(opened), Trouble::lasting, fmt::format("{} is damaged: {}", place.path, damage));
}

bool has_directory(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_directory(std::filesystem::absolute(path, failed).parent_path(), failed);
}

}  // namespace

Opened open_own(const OpenRequest& request) {
  Opened opened;
  Place place = find_place(request.path, request.read_only ? Purpose::shipped : Purpose::own, request.allow_shared);
  opened.path = place.path.empty() ? request.path : place.path;
  opened.network = place.network;
  if (request.read_only && !place.exists && !file_id(request.path).exists &&
      (place.refusal.empty() || !has_directory(request.path))) {
    return fail(std::move(opened), Trouble::absent, fmt::format("{} does not exist", request.path));
  }
  if (!place.refusal.empty()) return fail(std::move(opened), Trouble::lasting, place.refusal);
  // An empty file is an empty cache, and stays one if it is only read.
  const auto empty = [&] { return place.exists && file_size(place.path) == 0; };
  if (request.read_only) {
    if (empty()) return fail(std::move(opened), Trouble::absent, place.path + " is empty");
    return attempt_reading(request, std::move(opened), IfInUse::copy);
  }
  if (place.network) {
    opened.notes.emplace_back("network", fmt::format("{} is on {}: used without a write-ahead log, which is slower; a "
                                                     "directory on a local disk is better",
                                                     place.path, place.network));
  }
  for (int round = 0;; ++round) {
    if (!place.exists && !create_file(place, request.allow_shared)) {
      return fail(std::move(opened), Trouble::lasting, fmt::format("{} cannot be created", place.path));
    }
    if (empty() && !place.writable) return fail(std::move(opened), Trouble::absent, place.path + " is empty");
    if (auto reason = untouchable(place.path, request.allow_shared); !reason.empty())
      return fail(std::move(opened), Trouble::lasting, reason);
    if (!place.writable) return attempt_reading(request, std::move(opened), IfInUse::share_locks);
    const FileId id = file_id(place.path);
    std::string damage;
    opened = attempt_own(request, place, std::move(opened), damage);
    if (damage.empty() || round == 2) return opened;
    // Two processes may find the same damage: the second must not rename the file that the first has just made.
    const RenameLock lock(place.path + "-lock", 0.3);
    const std::string kept = lock.held() ? quarantine(place.path, id) : std::string();
    if (!kept.empty()) {
      opened.notes.emplace_back("damaged", fmt::format("{} was damaged ({}); it is now {} and a new cache was started",
                                                       place.path, damage, kept));
    }
    opened.trouble = Trouble::none;
    opened.reason.clear();
    place.exists = file_id(place.path).exists;
  }
}

Opened open_shipped(const OpenRequest& request) {
  Opened opened;
  const Place place = find_place(request.path, Purpose::shipped, request.allow_shared);
  opened.path = place.path.empty() ? request.path : place.path;
  if (!place.refusal.empty()) return fail(std::move(opened), Trouble::lasting, place.refusal);
  if (!place.exists) return fail(std::move(opened), Trouble::lasting, fmt::format("{} does not exist", place.path));
  return attempt_reading(request, std::move(opened), IfInUse::share_locks);
}

std::unique_ptr<Layer> open_memory(std::int64_t cap) {
  auto db = std::make_unique<Database>(":memory:", Database::Mode::memory);
  common_settings(*db, Clock::time_point::max());
  (void)adopt(*db);
  return std::make_unique<Layer>(std::move(db), ":memory:", cap, true);
}

std::unique_ptr<Layer> open_source(const std::string& named) {
  std::error_code missing;
  const std::string path = std::filesystem::canonical(named, missing).string();
  if (missing) throw Error(ErrorCode::io, "store", named, "cannot be opened: " + missing.message());
  const auto kind = std::filesystem::status(path, missing);
  if (kind.type() != std::filesystem::file_type::regular) {
    throw Error(ErrorCode::io, "store", named, "must be a regular file, not a directory, FIFO, socket or device");
  }
  try {
    OpenRequest request;
    request.path = path;
    request.check = true;
    return open_reading(request, path, IfInUse::copy);
  } catch (const Damaged& damage) {
    throw Error(ErrorCode::io, "store", path, "cannot be used: " + std::string(damage.what));
  } catch (const std::runtime_error& error) {
    throw Error(ErrorCode::io, "store", path, std::string("cannot be used: ") + error.what());
  }
}

}  // namespace tilewright::cache
