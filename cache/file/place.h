// SPDX-License-Identifier: Apache-2.0
// Where a cache file may live: nobody else may be able to put a file there, because what is loaded from it is run.
// Looks at directories and files by name and by descriptor of the directory; never opens a database file itself.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tilewright::cache {

struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool exists = false;
  friend bool operator==(const FileId&, const FileId&) = default;
};
FileId file_id(const std::string& path);          // does not follow a link
std::int64_t file_size(const std::string& path);  // bytes, -1 if there is none

struct Place {
  std::string path;               // absolute, no links in it
  bool exists = false;            // the file
  bool writable = false;          // file (if any) and directory
  const char* network = nullptr;  // "NFS": no shared memory between hosts, so no WAL
  std::string refusal;            // not empty: do not use it; says how to fix it
};

enum class Purpose {
  own,      // creates missing directories with mode 0700, gives the file mode 0600
  shipped,  // only looks
};
// `allow_shared` accepts directories and files that the group may write, or that another user owns.
Place find_place(const std::string& path, Purpose purpose, bool allow_shared);
// Why SQLite must not open the file at `path` for writing: a "-wal", "-shm" or "-journal" beside it, which SQLite would
// read, write and delete, is not a plain file of the same owner. Empty if there is no objection.
std::string side_file_refusal(const std::string& path, bool allow_shared);
// A FIFO, device or directory in the place of one of them: opening it may wait for ever. Empty if there is none.
std::string irregular_side_file(const std::string& path);
// An empty file of our own. False if that is impossible. An existing file is left alone.
bool create_file(const Place& place, bool allow_shared);

// Name of a network or user-space file system by statfs::f_type, null for any other.
const char* network_filesystem(unsigned long type);

// Renames a damaged file to `.corrupt-<n>`, removes older such files and the side files, unless the file at `path` is
// no longer `damaged` (another process was faster). Returns the new name, empty if nothing was renamed.
std::string quarantine(const std::string& path, const FileId& damaged);

}  // namespace tilewright::cache
