// SPDX-License-Identifier: Apache-2.0
// Log: an Engine's messages on their way to its user's callback (cache/serial_log.h says how), and how many of them
// were warnings. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "cache/serial_log.h"

namespace tilewright::tuner {

class Log {
 public:
  using Sink = cache::SerialLog::Sink;
  explicit Log(Sink sink = {}, LogLevel most = LogLevel::debug) : log_(std::move(sink)), most_(most) {}

  void operator()(LogLevel level, std::string_view message) {
    if (level == LogLevel::warning || level == LogLevel::error) warnings_.fetch_add(1, std::memory_order_relaxed);
    if (level <= most_) log_(level, message);
  }
  void launch(std::string_view message) { log_(LogLevel::info, message); }  // which is asked for by itself
  bool inside() const { return log_.inside(); }
  void warn(std::string_view message) { (*this)(LogLevel::warning, message); }
  std::int64_t warnings() const { return warnings_.load(std::memory_order_relaxed); }

 private:
  cache::SerialLog log_;
  const LogLevel most_;  // the least urgent that is passed on
  std::atomic<std::int64_t> warnings_{0};
};

}  // namespace tilewright::tuner
