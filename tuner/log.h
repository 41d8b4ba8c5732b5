// SPDX-License-Identifier: Apache-2.0
// Log: serializes an Engine's messages onto its user's callback. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include <tilewright/options.h>

namespace tilewright::tuner {

class Log {
 public:
  using Sink = std::function<void(LogLevel, std::string_view)>;
  explicit Log(Sink sink = {}, LogLevel most = LogLevel::debug) : sink_(std::move(sink)), most_(most) {}

  void operator()(LogLevel level, std::string_view message) {
    if (level == LogLevel::warning || level == LogLevel::error) warnings_.fetch_add(1, std::memory_order_relaxed);
    if (!sink_ || level > most_) return;
    // Recursive: a user's callback may call back into the Engine and make it log again on the same thread.
    std::lock_guard lock(mutex_);
    const Caller caller(caller_);
    sink_(level, message);
  }
  // True while this thread runs the user's callback; other threads with a message wait for it meanwhile.
  bool inside() const { return caller_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  void warn(std::string_view message) { (*this)(LogLevel::warning, message); }
  std::int64_t warnings() const { return warnings_.load(std::memory_order_relaxed); }

 private:
  struct Caller {
    explicit Caller(std::atomic<std::thread::id>& slot)
        : slot(slot), before(slot.exchange(std::this_thread::get_id())) {}
    ~Caller() { slot.store(before); }
    std::atomic<std::thread::id>& slot;
    const std::thread::id before;
  };

  Sink sink_;
  LogLevel most_ = LogLevel::debug;  // the least urgent that is passed on
  std::recursive_mutex mutex_;
  std::atomic<std::thread::id> caller_{};
  std::atomic<std::int64_t> warnings_{0};
};

}  // namespace tilewright::tuner
