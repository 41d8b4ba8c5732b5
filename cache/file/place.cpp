// SPDX-License-Identifier: Apache-2.0
#include "cache/file/place.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

namespace tilewright::cache {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A cache holds code that is run, so everybody who could have written it must be trusted like the user.
std::string owner_refusal(const struct stat& s, const std::string& what, bool allow_shared) {
  if (s.st_uid == geteuid() || s.st_uid == 0 || allow_shared) return {};
  if (geteuid() == 0)  // with another's HOME, as under sudo: what is that user's must not become root's
    return fmt::format(
        "{} belongs to user {}, and this process runs as root; set TILEWRIGHT_CACHE (Options::cache) to a file in a "
        "directory of root's, such as /root/.cache/tilewright/cache.db, or, if you trust that user with whatever this "
        "process may do, set TILEWRIGHT_ALLOW_SHARED=1 (Options::allow_shared)",
        what, s.st_uid);
  return fmt::format(
      "{} belongs to user {}, and this process runs as user {}; run: chown {} '{}', let it belong to root, or, if you "
      "trust that user with whatever this process may do, set TILEWRIGHT_ALLOW_SHARED=1 (Options::allow_shared)",
      what, s.st_uid, geteuid(), geteuid(), what);
}

constexpr const char* kAllowGroup =
    "or, if you trust everybody in it, set TILEWRIGHT_ALLOW_SHARED=1 (Options::allow_shared)";

// Says why somebody else could change what is in a directory; empty if nobody can. `leaf`: the file's own directory,
// where the sticky bit does not help, because it does not stop others from adding files.
std::string directory_refusal(const struct stat& s, const std::string& path, bool leaf, bool allow_shared) {
  if (auto refusal = owner_refusal(s, path, allow_shared); !refusal.empty()) return "directory " + refusal;
  if (!leaf && (s.st_mode & S_ISVTX)) return {};
  if (s.st_mode & S_IWOTH) {
    const bool by_mistake = s.st_uid == geteuid() && !(s.st_mode & S_ISVTX);  // unlike /tmp
    return fmt::format("directory {} is writable by everybody; {}", path,
                       by_mistake ? fmt::format("run: chmod go-w '{}'", path) : "use a directory of your own");
  }
  if ((s.st_mode & S_IWGRP) && !allow_shared) {
    return fmt::format("directory {} is writable by its group; run: chmod g-w '{}', {}", path, path, kAllowGroup);
  }
  return {};
}

// Checks `directory` (absolute, resolved) and everything above it.
std::string chain_refusal(const std::string& directory, bool allow_shared) {
  const Descriptor leaf(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat s {};
  if (leaf.get() < 0 || fstat(leaf.get(), &s) != 0) {
    return fmt::format("directory {}: {}", directory, std::strerror(errno));
  }
  if (auto refusal = directory_refusal(s, directory, true, allow_shared); !refusal.empty()) return refusal;
  for (std::string at = directory; at != "/";) {
    at = parent_of(at);
    if (lstat(at.c_str(), &s) != 0) return fmt::format("directory {}: {}", at, std::strerror(errno));
    if (auto refusal = directory_refusal(s, at, false, allow_shared); !refusal.empty()) return refusal;
  }
  return {};
}

// Returns the directory with the links above it resolved. The last component must not be a link, because an attacker
// would plant one there. `create`: missing directories are made with mode 0700.
std::string resolve_directory(const std::string& directory, bool create, std::string& refusal) {
  struct stat s {};
  if (lstat(directory.c_str(), &s) == 0) {
    if (S_ISLNK(s.st_mode)) {
      refusal = fmt::format("directory {} is a symbolic link; name the directory itself", directory);
      return {};
    }
    std::unique_ptr<char, decltype(&std::free)> real(realpath(directory.c_str(), nullptr), &std::free);
    if (real) return real.get();
    refusal = fmt::format("directory {}: {}", directory, std::strerror(errno));
    return {};
  }
  if (errno != ENOENT || !create || directory == "/") {
    refusal = fmt::format("directory {}: {}", directory, std::strerror(errno));
    return {};
  }
  // A missing parent may be reached through a link ("/home" -> "/data/home"), only the last component may not be one.
  std::string above = parent_of(directory);
  std::unique_ptr<char, decltype(&std::free)> real(realpath(above.c_str(), nullptr), &std::free);
  above = real ? std::string(real.get()) : resolve_directory(above, create, refusal);
  if (above.empty()) return {};
  const std::string made = (above == "/" ? "" : above) + directory.substr(directory.rfind('/'));
  if (mkdir(made.c_str(), 0700) != 0 && errno != EEXIST) {
    refusal = fmt::format("cannot create directory {}: {}", made, std::strerror(errno));
    return {};
  }
  return made;
}

std::string file_refusal(const struct stat& s, const std::string& path, bool allow_shared) {
  if (S_ISLNK(s.st_mode)) return fmt::format("{} is a symbolic link; name the file itself", path);
  if (!S_ISREG(s.st_mode)) return fmt::format("{} is not a regular file", path);
  if (auto refusal = owner_refusal(s, path, allow_shared); !refusal.empty()) return refusal;
  if (s.st_mode & S_IWOTH)
    return fmt::format("{} is writable by everybody; delete it, or run: chmod go-w '{}'", path, path);
  if ((s.st_mode & S_IWGRP) && !allow_shared) {
    return fmt::format("{} is writable by its group; delete it, or run: chmod g-w '{}', {}", path, path, kAllowGroup);
  }
  return {};
}

std::string absolute(const std::string& path, std::string& refusal) {
  std::error_code error;
  const std::string full = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) refusal = fmt::format("{}: {}", path, error.message());
  if (path.find('\0') != std::string::npos) refusal = "the path contains a zero byte";
  if (full.size() >= PATH_MAX) refusal = fmt::format("the path has {} bytes, more than {}", full.size(), PATH_MAX - 1);
  if (refusal.empty() && (full.empty() || full.back() == '/')) refusal = fmt::format("{} names a directory", path);
  return full;
}

}  // namespace

FileId file_id(const std::string& path) {
  struct stat s {};
  if (lstat(path.c_str(), &s) != 0) return {};
  return {s.st_dev, s.st_ino, true};
}

std::int64_t file_size(const std::string& path) {
  struct stat s {};
  return lstat(path.c_str(), &s) == 0 ? s.st_size : -1;
}

const char* network_filesystem(unsigned long type) {
  switch (type & 0xffffffff) {
    case 0x6969: return "NFS";
    case 0x517B: return "SMB";
    case 0xFF534D42: return "CIFS";
    case 0xFE534D42: return "SMB2";
    case 0x65735546: return "FUSE";
    case 0x01021997: return "9p";
    case 0x0BD00BD0: return "Lustre";
    case 0x47504653: return "GPFS";
    case 0x00C36400: return "Ceph";
    case 0x5346414F: return "AFS";
    case 0x6B414653: return "AFS";
    case 0x19830326: return "BeeGFS";
    case 0xAAD7AAEA: return "PanFS";
    case 0x7461636F: return "OCFS2";
    case 0x01161970: return "GFS2";
    default: return nullptr;
  }
}

Place find_place(const std::string& path, Purpose purpose, bool allow_shared) {
  Place place;
  const std::string full = absolute(path, place.refusal);
  if (!place.refusal.empty()) return place;
  const std::string directory = resolve_directory(parent_of(full), purpose == Purpose::own, place.refusal);
  if (!place.refusal.empty()) return place;
  place.path = (directory == "/" ? "" : directory) + full.substr(full.rfind('/'));
  place.refusal = chain_refusal(directory, allow_shared);
  if (!place.refusal.empty()) return place;

  const Descriptor dir(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct statfs filesystem {};
  if (fstatfs(dir.get(), &filesystem) == 0) {
    place.network = network_filesystem(static_cast<unsigned long>(filesystem.f_type));
  }
  const char* name = place.path.c_str() + place.path.rfind('/') + 1;
  place.writable = faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  struct stat s {};
  if (fstatat(dir.get(), name, &s, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno != ENOENT) place.refusal = fmt::format("{}: {}", place.path, std::strerror(errno));
    return place;
  }
  place.exists = true;
  place.refusal = file_refusal(s, place.path, allow_shared);
  if (!place.refusal.empty()) return place;
  if (faccessat(dir.get(), name, W_OK, AT_EACCESS) != 0) place.writable = false;
  if (faccessat(dir.get(), name, R_OK, AT_EACCESS) != 0) {
    place.refusal = fmt::format("{}: {}", place.path, std::strerror(errno));
  }
  // By name, because closing a descriptor of the file would drop SQLite's locks on it. Nobody else can exchange the
  // name meanwhile: the directory is ours.
  const bool ours = purpose == Purpose::own && s.st_uid == geteuid() && !allow_shared;
  if (ours && place.writable && (s.st_mode & 077)) (void)fchmodat(dir.get(), name, 0600, 0);
  return place;
}

std::string side_file_refusal(const std::string& path, bool allow_shared) {
  for (const char* side : {"-wal", "-shm", "-journal"}) {
    struct stat s {};
    const std::string name = path + side;
    if (lstat(name.c_str(), &s) != 0) continue;
    if (auto refusal = file_refusal(s, name, allow_shared); !refusal.empty()) return refusal;
    if (s.st_nlink > 1) return fmt::format("{} has {} names (hard links); a cache's own has one", name, s.st_nlink);
  }
  return {};
}

std::string irregular_side_file(const std::string& path) {
  for (const char* side : {"-wal", "-shm", "-journal"}) {
    struct stat s {};
    const std::string name = path + side;
    if (lstat(name.c_str(), &s) == 0 && !S_ISREG(s.st_mode) && !S_ISLNK(s.st_mode))
      return name + " beside it is not a regular file";
  }
  return {};
}

bool create_file(const Place& place, bool allow_shared) {
  // mknod() makes a file without opening it, so that no descriptor has to be closed. umask may have cut the mode.
  const mode_t mode = allow_shared ? 0660 : 0600;
  if (mknod(place.path.c_str(), S_IFREG | mode, 0) != 0) return errno == EEXIST;
  return chmod(place.path.c_str(), mode) == 0;
}

std::string quarantine(const std::string& path, const FileId& damaged) {
  if (!(file_id(path) == damaged) || !damaged.exists) return {};
  const std::string directory = parent_of(path);
  const std::string prefix = path.substr(path.rfind('/') + 1) + ".corrupt-";
  std::vector<std::string> older;
  unsigned long last = 0;
  if (DIR* dir = opendir(directory.c_str())) {
    while (const dirent* entry = readdir(dir)) {
      const std::string name = entry->d_name;
      unsigned long number = 0;
      if (name.rfind(prefix, 0) != 0) continue;
      const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
      if (error != std::errc() || end != name.data() + name.size()) continue;
      last = std::max(last, number);
      older.push_back(directory + '/' + name);
    }
    closedir(dir);
  }
  const std::string target = directory + '/' + prefix + std::to_string(last + 1);
  if (rename(path.c_str(), target.c_str()) != 0) return {};
  // SQLite would take a log or journal that stays for the new file's.
  for (const char* side : {"-wal", "-shm", "-journal"}) unlink((path + side).c_str());
  for (const std::string& name : older) unlink(name.c_str());
  return target;
}

}  // namespace tilewright::cache
