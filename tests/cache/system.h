// SPDX-License-Identifier: Apache-2.0
// The operating system's answers, changed: this executable's own fstatfs and clocks take precedence over the C
// library's.
#pragma once

#include <atomic>

namespace fake {

extern std::atomic<long> filesystem_type;  // what fstatfs() reports; 0: the truth
extern std::atomic<long> clock_shift;      // seconds added to the wall clock; the monotonic clock is never changed

}  // namespace fake
