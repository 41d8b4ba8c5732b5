// SPDX-License-Identifier: Apache-2.0
#include "cache/file/vfs_file.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tilewright::cache {

VfsFile::VfsFile(const std::string& path)
    : name_(nullptr, [](char* p) { sqlite3_free_filename(p); }), file_(nullptr, std::free) {
  sqlite3_initialize();
  sqlite3_vfs* vfs = sqlite3_vfs_find(nullptr);
  name_.reset(const_cast<char*>(sqlite3_create_filename(path.c_str(), "", "", 0, nullptr)));
  file_.reset(static_cast<sqlite3_file*>(std::calloc(1, static_cast<std::size_t>(vfs->szOsFile))));
  if (!name_ || !file_) return;
  int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_NOFOLLOW;
  const int rc = vfs->xOpen(vfs, name_.get(), file_.get(), flags, &flags);
  if (rc == SQLITE_OK) return;
  if (file_->pMethods) file_->pMethods->xClose(file_.get());
  file_->pMethods = nullptr;
}

VfsFile::~VfsFile() {
  if (is_open()) file_->pMethods->xClose(file_.get());
}

bool VfsFile::is_open() const { return file_ && file_->pMethods; }

std::int64_t VfsFile::size() {
  sqlite3_int64 size = 0;
  return is_open() && file_->pMethods->xFileSize(file_.get(), &size) == SQLITE_OK ? size : -1;
}

bool VfsFile::read(std::int64_t offset, std::span<std::byte> out) {
  if (!is_open()) return false;
  const int rc = file_->pMethods->xRead(file_.get(), out.data(), static_cast<int>(out.size()), offset);
  return rc == SQLITE_OK || rc == SQLITE_IOERR_SHORT_READ;
}

std::optional<FileHeader> read_header(const std::string& path) {
  VfsFile file(path);
  const std::int64_t size = file.size();
  std::byte bytes[100] = {};
  if (size < 0 || !file.read(0, bytes)) return std::nullopt;
  const auto big_endian = [&](int at) {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint32_t>(bytes[at + i]);
    return value;
  };
  const auto known = static_cast<std::size_t>(std::min<std::int64_t>(size, 16));
  const bool begins = std::memcmp(bytes, "SQLite format 3", known) == 0;
  const bool zeros = std::all_of(bytes, bytes + known, [](std::byte b) { return b == std::byte{0}; });
  return FileHeader{size,           size >= 100 && begins, !begins && !zeros, bytes[18] == std::byte{2},
                    big_endian(68), big_endian(60),        big_endian(28)};
}

bool names_super_journal(const std::string& journal) {
  constexpr unsigned char kMagic[] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
  VfsFile file(journal);
  std::byte tail[sizeof kMagic];
  const std::int64_t size = file.size();
  return size >= 16 && file.read(size - 8, tail) && std::memcmp(tail, kMagic, sizeof kMagic) == 0;
}

}  // namespace tilewright::cache
