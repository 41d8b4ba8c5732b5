// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the emulator itself.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include "emulator/emulator.h"
#include "support/catch.h"
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace emulator_test {

using namespace tw;

constexpr std::uint64_t kSeeds = 8;

// The message of the Error that `kernel` ends with.
inline std::string error_of(const emu::Launch& launch, const std::function<void()>& kernel) {
  try {
    emu::run(launch, kernel);
  } catch (const emu::Error& e) {
    return e.what();
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Whether a sanitizer ends a process that does this.
inline bool dies(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    close(1), close(2);  // the report is expected
    action();
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
#endif

}  // namespace emulator_test
