// SPDX-License-Identifier: Apache-2.0
// Log: serialises an Engine's messages onto its user's callback. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

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
    sink_(level, message);
  }
  void warn(std::string_view message) { (*this)(LogLevel::warning, message); }
  std::int64_t warnings() const { return warnings_.load(std::memory_order_relaxed); }

 private:
  Sink sink_;
  LogLevel most_ = LogLevel::debug;  // the least urgent that is passed on
  std::recursive_mutex mutex_;
  std::atomic<std::int64_t> warnings_{0};
};

}  // namespace tilewright::tuner
