// SPDX-License-Identifier: Apache-2.0
// Messages go to TensorRT's logger. No exception leaves a function that TensorRT calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "NvInferRuntime.h"

namespace tilewright::tensorrt {

using Severity = nvinfer1::ILogger::Severity;

// TensorRT sets it when it loads the library. TensorRT-RTX 1.7's never has a logger.
void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;
// What takes messages where there is no logger; empty: nothing does.
void set_other_log(std::function<void(Severity, std::string_view)> log);
void say(Severity severity, std::string_view text) noexcept;

// The latest error of the process, for callers whose TensorRT has no logger. Copies at most `size` bytes, with a zero
// at the end, and returns the size of the whole text.
std::size_t last_error(char* to, std::size_t size) noexcept;

// Calls action(); an exception becomes an error "tilewright: WHO: ..." and the result `failed`.
template <class Result, class Action>
Result guarded(std::string_view who, Result failed, const Action& action) noexcept {
  try {
    return action();
  } catch (const std::exception& e) {
    try {
      say(Severity::kERROR, std::string(who) + ": " + e.what());
    } catch (...) {  // no memory for the text
      say(Severity::kERROR, "memory is exhausted");
    }
  }
  return failed;
}

// The same for functions that return 0 if they succeed.
template <class Action>
std::int32_t status(std::string_view who, const Action& action) noexcept {
  return guarded<std::int32_t>(who, -1, [&] {
    action();
    return 0;
  });
}

}  // namespace tilewright::tensorrt
