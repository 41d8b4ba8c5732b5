// SPDX-License-Identifier: Apache-2.0
// An SQLite VFS over the default one that fails chosen operations, as a disk or a lock server would. While an object
// lives it is the default VFS, so that a Store uses it without knowing. Counts operations from when it was armed.
#pragma once

#include <atomic>

namespace fault {

enum Operation : unsigned {
  kRead = 1,
  kWrite = 2,
  kSync = 4,
  kTruncate = 8,
  kLock = 16,
  kShmMap = 32,
  kShmLock = 64,
  kOpen = 128,
  kAll = 255,
};

class Vfs {
 public:
  Vfs();
  ~Vfs();
  Vfs(const Vfs&) = delete;
  Vfs& operator=(const Vfs&) = delete;

  // The n-th operation (from 0) of the given kinds fails with `code`; `sticky`: and all after it.
  void arm(unsigned operations, long n, int code, bool sticky);
  void disarm();
  bool fired() const;  // something failed since arm()
};

}  // namespace fault
