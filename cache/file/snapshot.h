// SPDX-License-Identifier: Apache-2.0
// Reading a database that somebody else wrote, or is writing, without touching it: a private copy of the file and its
// write-ahead log, into which SQLite replays the log.
#pragma once

#include <memory>
#include <string>

#include "cache/file/sqlite.h"

namespace tilewright::cache {

// `path` and its "-wal", if there is one, are only read. The copy lies in a fresh directory of mode 0700 under /tmp,
// /var/tmp or /dev/shm, the first with room, and has no name any more when this returns, so that nothing is left behind
// however the process ends; what a process left that was killed before, a later one removes. It may be changed. Holes
// stay holes. Copying is repeated while another process changes the file. Throws SnapshotError, for a file of more than
// 4 GiB too, or SqliteError for what is wrong with the content.
std::unique_ptr<Database> open_snapshot(const std::string& path, Clock::time_point deadline);

class SnapshotError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tilewright::cache
