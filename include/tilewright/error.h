// SPDX-License-Identifier: Apache-2.0
// Error: what the library throws when a caller asked for something it cannot have.
// Every error is a sentence about a field and the value it had. Immutable; safe to copy between threads.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <tilewright/export.h>

namespace tilewright {

enum class ErrorCode {
  invalid_argument,  // a value outside its range, an unknown name, a pointer that cannot be used
  unsupported,       // well-formed, but nothing in the library can do it
  too_large,         // beyond a stated limit
  would_tune,        // needs compiling or measuring now, which was forbidden (stream capture, Options)
  compile_failed,    // NVRTC rejected a source (see CompileError)
  driver_failed,     // a CUDA driver call failed
  library_missing,   // libcuda or libnvrtc not found, too old, or of mismatched versions
  forked,            // a CUDA object was used in a child process after fork()
  io,                // a file could not be read or written
};

// Stable lower-case name of a code ("invalid_argument").
inline const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::too_large: return "too_large";
    case ErrorCode::would_tune: return "would_tune";
    case ErrorCode::compile_failed: return "compile_failed";
    case ErrorCode::driver_failed: return "driver_failed";
    case ErrorCode::library_missing: return "library_missing";
    case ErrorCode::forked: return "forked";
    case ErrorCode::io: return "io";
  }
  return "unknown";
}

class TILEWRIGHT_EXPORT Error : public std::runtime_error {
 public:
  // `allowed` is the predicate of a sentence whose subject is the field: what the field must be, or what is wrong with
  // the value and what to do. The message has both: "k must be a multiple of 32 (got 100): ...", "x_from=f16 is not
  // supported".
  Error(ErrorCode code, std::string field, std::string value, std::string allowed)
      : std::runtime_error(sentence(field, value, allowed)),
        code_(code),
        field_(std::move(field)),
        value_(std::move(value)),
        allowed_(std::move(allowed)) {}

  ErrorCode code() const noexcept { return code_; }
  const std::string& field() const noexcept { return field_; }
  const std::string& value() const noexcept { return value_; }
  const std::string& allowed() const noexcept { return allowed_; }

 private:
  static std::string sentence(const std::string& field, const std::string& value, const std::string& allowed) {
    if (value.empty()) return field + " " + allowed;
    const bool demand = allowed.starts_with("must "), failure = allowed.starts_with("failed");
    if (demand || failure) {  // the value follows the first clause
      const std::size_t end = std::min({allowed.find("; "), allowed.find(": "), allowed.size()});
      return field + " " + allowed.substr(0, end) + (demand ? " (got " : " (") + value + ")" + allowed.substr(end);
    }
    const bool words = field.find(' ') == std::string::npos && value.find_first_of(" /=") == std::string::npos;
    return field + (words ? "=" : " ") + value + " " + allowed;
  }

  ErrorCode code_;
  std::string field_, value_, allowed_;
};

// NVRTC rejected a source. `log` is cut to its first 4096 bytes; what() holds its first lines.
class TILEWRIGHT_EXPORT CompileError : public Error {
 public:
  CompileError(std::string name, std::string target, std::string options, std::string source, std::string log)
      : Error(ErrorCode::compile_failed, "source " + name, target, "cannot be compiled: " + log.substr(0, 400)),
        options_(std::move(options)),
        source_(std::move(source)),
        log_(log.substr(0, 4096)) {}

  const std::string& options() const noexcept { return options_; }
  const std::string& source() const noexcept { return source_; }
  const std::string& log() const noexcept { return log_; }

 private:
  std::string options_, source_, log_;
};

}  // namespace tilewright
