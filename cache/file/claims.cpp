// SPDX-License-Identifier: Apache-2.0
#include "cache/file/claims.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <thread>

namespace tilewright::cache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr off_t kRenameOffset = off_t{1} << 61;

// Keys may share a byte: then one of their builders waits for the other, and nothing else happens.
off_t offset_of(const std::string& hash) {
  std::uint64_t value = 0;
  std::from_chars(hash.data(), hash.data() + std::min<std::size_t>(hash.size(), 15), value, 16);
  return static_cast<off_t>(value);  // < 2^60
}

// Returns the descriptor that holds the byte, -1 if somebody else held it until the wait ended, -2 without a lock file.
int lock_byte(const std::string& path, off_t offset, double wait_seconds) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return -2;
  wait_seconds = std::isfinite(wait_seconds) ? std::clamp(wait_seconds, 0.0, 10.0) : 0.0;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_seconds));
  for (int pause = 1;; pause = std::min(pause * 2, 20)) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = offset;
    lock.l_len = 1;
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0) return fd;
    const bool taken = errno == EAGAIN || errno == EACCES;
    if (!taken || Clock::now() >= end) {
      close(fd);
      return taken ? -1 : -2;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause));
  }
}

}  // namespace

Claims::~Claims() {
  for (const auto& [hash, fd] : held_) close(fd);
}

void Claims::use(const std::string& path) {
  const std::lock_guard guard(mutex_);
  path_ = path;
}

bool Claims::claim(const std::string& hash, double wait_seconds) {
  std::string path;
  {
    const std::lock_guard guard(mutex_);
    path = path_;
  }
  if (path.empty()) return true;
  const int fd = lock_byte(path, offset_of(hash), wait_seconds);
  if (fd >= 0) {
    const std::lock_guard guard(mutex_);
    held_.emplace(hash, fd);
  }
  return fd != -1;
}

void Claims::release(const std::string& hash) {
  const std::lock_guard guard(mutex_);
  const auto found = held_.find(hash);
  if (found == held_.end()) return;
  close(found->second);
  held_.erase(found);
}

RenameLock::RenameLock(const std::string& path, double wait_seconds) {
  if (!path.empty()) fd_ = lock_byte(path, kRenameOffset, wait_seconds);
}

RenameLock::~RenameLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace tilewright::cache
