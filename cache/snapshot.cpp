// SPDX-License-Identifier: Apache-2.0
#include "cache/snapshot.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "cache/place.h"
#include "cache/vfs_file.h"

namespace tilewright::cache {
namespace {

constexpr std::size_t kChunk = 1 << 20;
constexpr std::int64_t kMostLog = 1 << 30;  // bytes; a store's log is written back at 4 MiB
constexpr const char* kPlaces[] = {"/tmp", "/var/tmp", "/dev/shm"};

class PrivateDirectory {
 public:
  // The name carries the process, so that a copy left by a process that was killed can be told from one in use.
  explicit PrivateDirectory(const char* place) : path_(fmt::format("{}/tilewright-copy-{}-XXXXXX", place, getpid())) {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~PrivateDirectory() {
    if (path_.empty()) return;
    for (const char* side : {"", "-wal", "-shm", "-journal"}) unlink((file() + side).c_str());
    rmdir(path_.c_str());
  }
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  bool made() const { return !path_.empty(); }
  std::string file() const { return path_ + "/copy.db"; }

 private:
  std::string path_;
};

// Empty, or why `to` could not be written. A source that cannot be read to its end throws.
std::string copy_file(const std::string& from, const std::string& to, Clock::time_point deadline) {
  VfsFile source(from);
  const std::int64_t size = source.size();
  if (size < 0) throw SnapshotError("it cannot be read");
  const std::unique_ptr<FILE, int (*)(FILE*)> copy(std::fopen(to.c_str(), "wbe"), &std::fclose);
  if (!copy) return std::strerror(errno);
  std::vector<std::byte> chunk(kChunk);
  for (std::int64_t at = 0; at < size; at += static_cast<std::int64_t>(kChunk)) {
    const std::span part(chunk.data(), static_cast<std::size_t>(std::min<std::int64_t>(size - at, kChunk)));
    if (Clock::now() > deadline || !source.read(at, part)) throw SnapshotError("it cannot be read in time");
    if (std::fwrite(part.data(), 1, part.size(), copy.get()) != part.size()) return std::strerror(errno);
  }
  return std::fflush(copy.get()) == 0 ? "" : std::strerror(errno);
}

// Differs after somebody has written a file.
struct Stamp {
  FileId id;
  std::int64_t size = 0, seconds = 0, nanoseconds = 0;
  friend bool operator==(const Stamp&, const Stamp&) = default;
};
Stamp stamp(const std::string& path) {
  struct stat s {};
  if (lstat(path.c_str(), &s) != 0) return {};
  return {{s.st_dev, s.st_ino, true}, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
}

// SQLite takes a file that does not begin with this for an empty log.
bool begins_as_log(const std::string& path) {
  std::byte magic[4];
  VfsFile log(path);
  return log.size() >= 32 && log.read(0, magic) && magic[0] == std::byte{0x37} && magic[1] == std::byte{0x7f} &&
         magic[2] == std::byte{0x06} && (magic[3] | std::byte{1}) == std::byte{0x83};
}

// Copies until neither file changed meanwhile: a log that was written back between the two copies belongs to neither.
std::string copy_unchanged(const std::string& path, const std::string& to, Clock::time_point deadline) {
  for (int attempt = 0;; ++attempt) {
    const Stamp before = stamp(path), log_before = stamp(path + "-wal");
    for (const char* side : {"", "-wal"}) {
      unlink((to + side).c_str());
      if (*side && (!log_before.id.exists || !begins_as_log(path + "-wal"))) continue;
      if (*side && log_before.size > kMostLog)
        throw SnapshotError(
            fmt::format("its write-ahead log has {} bytes, and at most {} are read", log_before.size, kMostLog));
      if (auto failure = copy_file(path + side, to + side, deadline); !failure.empty()) return failure;
    }
    if (stamp(path) == before && stamp(path + "-wal") == log_before) return {};
    if (attempt == 20 || Clock::now() > deadline) throw SnapshotError("another process keeps writing it");
    std::this_thread::sleep_for(std::chrono::milliseconds(10 << std::min(attempt, 5)));
  }
}

std::unique_ptr<Database> open_copy(const std::string& path, Clock::time_point deadline) {
  auto db = std::make_unique<Database>(path, Database::Mode::read_write);
  db->set_deadline(deadline);
  // Alone with its copy, SQLite needs no shared index, and no file by name after the log is in the database.
  db->exec("PRAGMA trusted_schema=0; PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=2");
  (void)db->text("PRAGMA journal_mode=DELETE");
  (void)db->text("PRAGMA journal_mode=MEMORY");
  db->integer("SELECT count(*) FROM sqlite_schema");
  return db;
}

}  // namespace

std::unique_ptr<Database> open_snapshot(const std::string& path, Clock::time_point deadline) {
  std::string failures;
  for (const char* place : kPlaces) {
    const PrivateDirectory directory(place);
    std::string failure =
        directory.made() ? copy_unchanged(path, directory.file(), deadline) : std::string(std::strerror(errno));
    if (failure.empty()) return open_copy(directory.file(), deadline);
    failures += fmt::format("{}{}: {}", failures.empty() ? "" : "; ", place, failure);
  }
  throw SnapshotError("it is read from a private copy, for which there is no room (" + failures + ")");
}

}  // namespace tilewright::cache
