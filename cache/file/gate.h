// SPDX-License-Identifier: Apache-2.0
// Gate: a mutex that can be waited for until a deadline. Not std::timed_mutex, whose timed wait ThreadSanitizer does
// not see, so that it would report every use.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tilewright::cache {

class Gate {
 public:
  void lock() {
    std::unique_lock guard(mutex_);
    free_.wait(guard, [&] { return !taken_; });
    taken_ = true;
  }
  bool try_lock() {
    const std::lock_guard guard(mutex_);
    return !taken_ && (taken_ = true);
  }
  bool try_lock_until(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock guard(mutex_);
    if (!free_.wait_until(guard, deadline, [&] { return !taken_; })) return false;
    return taken_ = true;
  }
  void unlock() {
    const std::lock_guard guard(mutex_);
    taken_ = false;
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;
};

}  // namespace tilewright::cache
