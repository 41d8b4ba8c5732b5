// SPDX-License-Identifier: Apache-2.0
// Work for another process: this executable started again (not forked, because SQLite must not be used after fork).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace child {

using Arguments = std::vector<std::string>;

// Registers work under a name. Static objects in test files; the result is the exit code.
struct Work {
  Work(const char* name, int (*run)(const Arguments& arguments));
};

constexpr unsigned kNobody = 65534;

pid_t start(const std::string& name, const Arguments& arguments, unsigned uid = 0);  // 0: as this process
int wait(pid_t pid);                                                                 // exit code, or minus the signal
int run(const std::string& name, const Arguments& arguments, unsigned uid = 0);
bool is_root();

}  // namespace child
