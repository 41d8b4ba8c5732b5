// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/log.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace tilewright::tensorrt {
namespace {

struct State {
  std::mutex mutex;
  nvinfer1::ILoggerFinder* finder = nullptr;
  std::function<void(Severity, std::string_view)> other;
  std::string last_error;
};
State& state() {
  static State* const made = new State();  // engines may outlive main()
  return *made;
}

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.finder = finder;
}

void set_other_log(std::function<void(Severity, std::string_view)> log) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.other = std::move(log);
}

void say(Severity severity, std::string_view text) noexcept {
  try {
    State& s = state();
    nvinfer1::ILoggerFinder* finder;
    std::function<void(Severity, std::string_view)> other;
    {
      const std::lock_guard lock(s.mutex);
      if (severity <= Severity::kERROR) s.last_error = text;
      finder = s.finder;
      other = s.other;
    }
    if (nvinfer1::ILogger* const logger = finder ? finder->findLogger() : nullptr)
      logger->log(severity, ("tilewright: " + std::string(text)).c_str());
    else if (other)
      other(severity, text);
  } catch (...) {  // of the host's functions, or no memory
  }
}

std::size_t last_error(char* to, std::size_t size) noexcept {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (size > 0) {
    const std::size_t copied = std::min(size - 1, s.last_error.size());
    std::memcpy(to, s.last_error.data(), copied);
    to[copied] = '\0';
  }
  return s.last_error.size();
}

}  // namespace tilewright::tensorrt
