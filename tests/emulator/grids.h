// SPDX-License-Identifier: Apache-2.0
// Kernels that begin before the one in front of them has ended.
#pragma once
#include <functional>
#include <initializer_list>
#include <vector>

#include "core/types.cuh"

namespace tw::emu {

// write() is what the kernel before does last: once a thread waits for it (wait_prerequisite_grids), and not while any other can run or
// a copy is under way. Whoever reads earlier does not see it. written(): it was called, or there is none.
void written_before(std::function<void()> write);
bool written();
void write();  // by the scheduler
// Of bytes that stay 0xff (of floats: NaN) until then.
void written_before(std::initializer_list<std::vector<u8>*> bytes);

}  // namespace tw::emu
