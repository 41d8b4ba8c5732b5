// SPDX-License-Identifier: Apache-2.0
// Reads the bytes of database files. They are opened through SQLite's VFS, because closing a descriptor of our own
// would drop the POSIX locks that other connections of this process hold on the same file. Links are not followed.
// Values; used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

struct sqlite3_file;

namespace tilewright::cache {

class VfsFile {
 public:
  explicit VfsFile(const std::string& path);  // must name a regular file: opening a FIFO would wait for its writer
  ~VfsFile();
  VfsFile(const VfsFile&) = delete;
  VfsFile& operator=(const VfsFile&) = delete;

  bool is_open() const;
  std::int64_t size();                                       // -1 on failure
  bool read(std::int64_t offset, std::span<std::byte> out);  // fills what the file does not reach with zeros

 private:
  std::unique_ptr<char, void (*)(char*)> name_;
  std::unique_ptr<sqlite3_file, void (*)(void*)> file_;
};

struct FileHeader {
  std::int64_t size = 0;
  bool sqlite = false;   // starts with a whole database header
  bool foreign = false;  // starts like no database, whole, cut short or never written
  bool wal = false;
  std::uint32_t application_id = 0;
  std::uint32_t user_version = 0;
  std::uint32_t pages = 0;
};
// The first 100 bytes of a database, nothing if it cannot be opened.
std::optional<FileHeader> read_header(const std::string& path);

// True if a rollback journal ends with the name of a super-journal. SQLite writes one for a transaction on several
// databases, which a Store never runs, and deletes the file of that name after rolling back.
bool names_super_journal(const std::string& journal);

}  // namespace tilewright::cache
