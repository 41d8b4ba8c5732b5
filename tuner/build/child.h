// SPDX-License-Identifier: Apache-2.0
// A child process that cannot outlive its parent. Free-threaded.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace tilewright::tuner {

// Runs `program` with one argument. Its stdin and stdout are `stdio`, its stderr is /dev/null. Linux kills it when the
// calling thread ends, however that happens: the thread must live as long as the child is needed. Throws Error (io) if
// the program cannot be started.
pid_t start_child(const std::string& program, const char* argument, int stdio);

// Waits for the child to end, kills it after `grace`, and reaps it.
void end_child(pid_t child, std::chrono::milliseconds grace);

}  // namespace tilewright::tuner
