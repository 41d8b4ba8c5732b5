// SPDX-License-Identifier: Apache-2.0
// The functions of a driver (jit/driver.h) for the CPU that this process runs on, so that all that is written for GPUs
// serves it: memory is the host's, a module is a loaded object, a launch runs the blocks on the device's threads and
// returns when they are done. Thread-safe.
#pragma once

#include "jit/cpu/pool.h"
#include "jit/driver.h"

namespace tilewright::jit::cpu {

// What stands for a context.
struct Context {
  explicit Context(const CpuOptions& options) : pool(options) {}
  Pool pool;
  unsigned long long id = 0;
};

// By its name, as in jit/driver.h; null: a CPU's driver has no such function. They throw Error where a launch or an
// object is not acceptable, and return numbers otherwise.
void* driver_function(const char* name);

std::string processor_name();     // what the CPU calls itself
std::int64_t last_cache_bytes();  // of the largest cache; 0: not known

}  // namespace tilewright::jit::cpu
