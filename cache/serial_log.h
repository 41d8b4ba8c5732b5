// SPDX-License-Identifier: Apache-2.0
// SerialLog: hands messages to a user's callback one at a time, in order, from whichever thread logs first.
// Thread-safe.
//
// No lock is held while the callback runs, so it may use whatever logs here: what is logged meanwhile, by this thread
// or another, is queued, and handed over by the thread that is in the callback once that returns.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <tilewright/options.h>

namespace tilewright::cache {

class SerialLog {
 public:
  using Sink = std::function<void(LogLevel, std::string_view)>;
  explicit SerialLog(Sink sink = {}) : sink_(std::move(sink)) {}

  // Throws what the callback throws.
  void operator()(LogLevel level, std::string_view message) {
    if (!sink_) return;
    std::unique_lock lock(mutex_);
    queue_.emplace_back(level, message);
    if (delivering_) return;
    delivering_ = true;
    caller_ = std::this_thread::get_id();
    while (!queue_.empty()) {
      const auto [next_level, next] = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      try {
        sink_(next_level, next);
      } catch (...) {
        lock.lock();
        caller_ = std::thread::id();
        delivering_ = false;
        throw;
      }
      lock.lock();
    }
    caller_ = std::thread::id();
    delivering_ = false;
  }
  // Whether this thread is in the callback: what it started before it logged does not go on until the callback returns.
  bool inside() const { return caller_ == std::this_thread::get_id(); }

 private:
  const Sink sink_;
  std::mutex mutex_;
  std::deque<std::pair<LogLevel, std::string>> queue_;
  bool delivering_ = false;
  std::atomic<std::thread::id> caller_{};
};

}  // namespace tilewright::cache
