// SPDX-License-Identifier: Apache-2.0
// How compile() (tilewright/kernel.h) reads what the compiler said. Pure functions, usable from any thread.
#pragma once

#include <string>
#include <string_view>

#include <tilewright/kernel.h>

namespace tilewright::jit {

// What `ptxas -v` reports about `entry`. Zeros where the log says nothing about it.
Resources parse_resources(std::string_view log, std::string_view entry);

// The log without ptxas's informational lines: they hold timings, so that equal binaries would have unequal logs.
// At most `limit` bytes.
std::string without_statistics(std::string_view log, std::size_t limit);

}  // namespace tilewright::jit
