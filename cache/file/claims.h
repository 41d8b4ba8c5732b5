// SPDX-License-Identifier: Apache-2.0
// Advisory single flight between processes (and threads): one byte of a side file, locked by an open-file-description
// lock at an offset made from the key's hash. The kernel frees it when its holder dies, however it dies, across
// containers too, and no row has to be written or expired. Thread-safe. Nothing here can fail: without a lock file
// every claim is granted.
#pragma once

#include <map>
#include <mutex>
#include <string>

namespace tilewright::cache {

class Claims {
 public:
  Claims() = default;
  ~Claims();
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  void use(const std::string& path);  // the side file; empty: grant everything
  bool claim(const std::string& hash, double wait_seconds);
  void release(const std::string& hash);

 private:
  std::string path_;
  std::mutex mutex_;
  std::multimap<std::string, int> held_;  // hash -> its own descriptor, so that threads exclude each other as well
};

// Holds the one lock of a side file that guards renaming the database away. Empty path: holds nothing.
class RenameLock {
 public:
  RenameLock(const std::string& path, double wait_seconds);
  ~RenameLock();
  RenameLock(const RenameLock&) = delete;
  RenameLock& operator=(const RenameLock&) = delete;
  bool held() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace tilewright::cache
