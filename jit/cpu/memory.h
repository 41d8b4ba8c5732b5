// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take: what the system has, and what its control groups (cgroups, versions 1
// and 2) leave. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace tilewright::jit::cpu {

struct HostMemory {
  std::size_t free = 0, total = 0;  // bytes
};
// `root`: of the file system, for tests.
HostMemory host_memory(const std::string& root = "");

}  // namespace tilewright::jit::cpu
