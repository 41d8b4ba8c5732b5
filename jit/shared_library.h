// SPDX-License-Identifier: Apache-2.0
// dlopen() for names that come from a user or an environment. Usable from any thread.
#pragma once

#include <string>

namespace tilewright::jit {

// The library's handle, never closed; null with the reason in `why`. Where `name` is a path it must be a regular file:
// the loader would wait for somebody to write to a FIFO.
void* open_shared_library(const std::string& name, std::string& why);

}  // namespace tilewright::jit
