// SPDX-License-Identifier: Apache-2.0
#include "cache/file/snapshot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "cache/file/place.h"
#include "cache/file/schema.h"
#include "cache/file/vfs_file.h"

namespace tilewright::cache {
namespace {

constexpr std::size_t kChunk = 1 << 20, kHole = 64 << 10;
constexpr std::int64_t kMostLog = 1 << 30;                  // bytes; a store's log is written back at 4 MiB
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;  // of the database, whose default cap is 512 MiB
constexpr std::int64_t kSpare = 64 << 20;                   // bytes that a copy leaves free
constexpr auto kAbandoned = std::chrono::minutes(10);       // a copy loses its name within seconds
constexpr std::string_view kPrefix = "tilewright-copy-";
constexpr const char* kPlaces[] = {"/tmp", "/var/tmp", "/dev/shm"};

constexpr const char kCopy[] = "copy.db";

class PrivateDirectory {
 public:
  // The name carries the process, so that a copy left by a process that was killed can be told from one in use.
  explicit PrivateDirectory(const char* place) : path_(fmt::format("{}/{}{}-XXXXXX", place, kPrefix, getpid())) {
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
  std::string file() const { return path_ + '/' + kCopy; }

 private:
  std::string path_;
};

// Removes what processes of this user left behind that were killed while they copied. Another container's process may
// use the same number, so a copy must be old as well.
void remove_abandoned(const char* place) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(place, failed)) {
    const std::string name = entry.path().filename().string();
    pid_t owner = 0;
    if (!name.starts_with(kPrefix)) continue;
    const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), owner);
    if (error != std::errc() || end == name.data() + name.size() || *end != '-' || owner <= 0) continue;
    if (kill(owner, 0) == 0 || errno != ESRCH) continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat s {};
    if (fd >= 0 && fstat(fd, &s) == 0 && s.st_uid == geteuid() &&
        std::chrono::system_clock::from_time_t(s.st_mtime) + kAbandoned < std::chrono::system_clock::now()) {
      for (const char* side : {"", "-wal", "-shm", "-journal"}) unlinkat(fd, (std::string(kCopy) + side).c_str(), 0);
      rmdir(entry.path().c_str());
    }
    if (fd >= 0) close(fd);
  }
}

bool is_zero(std::span<const std::byte> bytes) {  // not empty
  return bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

// Empty, or why `to` could not be written. Zeros take no room there. A source that cannot be read to its end throws.
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
    for (std::size_t done = 0; done < part.size(); done += kHole) {
      const auto piece = part.subspan(done, std::min(kHole, part.size() - done));
      const bool written = is_zero(piece) ? fseeko(copy.get(), static_cast<off_t>(piece.size()), SEEK_CUR) == 0
                                          : std::fwrite(piece.data(), 1, piece.size(), copy.get()) == piece.size();
      if (!written) return std::strerror(errno);
    }
  }
  const bool whole = std::fflush(copy.get()) == 0 && ftruncate(fileno(copy.get()), size) == 0;
  return whole ? "" : std::strerror(errno);
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

// Bytes of a file that are no holes.
std::int64_t allocated(const std::string& path) {
  struct stat s {};
  return lstat(path.c_str(), &s) == 0 ? std::min<std::int64_t>(s.st_size, s.st_blocks * std::int64_t{512}) : 0;
}

// Why a private copy has no room at `place`; empty if it has.
std::string no_room(const std::string& path, const char* place) {
  struct statvfs room {};
  if (statvfs(place, &room) != 0) return std::strerror(errno);
  const std::int64_t needed = allocated(path) + allocated(path + "-wal") + kSpare;
  const auto free = static_cast<std::int64_t>(room.f_bavail * room.f_frsize);
  return needed <= free ? "" : fmt::format("{} bytes are free, and {} are needed", free, needed);
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
  load_schema(*db, deadline);
  // Alone with its copy, SQLite needs no shared index, and no file by name after the log is in the database.
  db->exec("PRAGMA trusted_schema=0; PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=2");
  (void)db->text("PRAGMA journal_mode=DELETE");
  (void)db->text("PRAGMA journal_mode=MEMORY");
  db->integer("SELECT count(*) FROM sqlite_schema");
  return db;
}

}  // namespace

std::unique_ptr<Database> open_snapshot(const std::string& path, Clock::time_point deadline) {
  if (const std::int64_t bytes = file_size(path); bytes > kMostBytes)
    throw SnapshotError(
        fmt::format("another process may be writing it, so it is read from a private copy, and its {} bytes are more "
                    "than the {} that are copied; close the programs that use it and try again",
                    bytes, kMostBytes));
  std::string failures;
  for (const char* place : kPlaces) {
    remove_abandoned(place);
    const PrivateDirectory directory(place);
    std::string failure = directory.made() ? no_room(path, place) : std::string(std::strerror(errno));
    if (failure.empty()) failure = copy_unchanged(path, directory.file(), deadline);
    if (failure.empty()) return open_copy(directory.file(), deadline);
    failures += fmt::format("{}{}: {}", failures.empty() ? "" : "; ", place, failure);
  }
  throw SnapshotError("it is read from a private copy, for which there is no room (" + failures + ")");
}

}  // namespace tilewright::cache
