// SPDX-License-Identifier: Apache-2.0
// Kernels that begin before the one in front of them has ended.
#pragma once
#include <initializer_list>
#include <vector>

#include "backends/cuda/types.cuh"

namespace tw::emu {

// The kernel before writes these bytes, which are 0xff (of floats: NaN) until then, as late as it may: once a thread
// waits for it (wait_prerequisite_grids), and not while any other can run or a copy is under way. Whoever reads earlier
// does not see them.
void written_before(std::initializer_list<std::vector<u8>*> bytes);
bool written();  // or nothing was to be
void write();    // by the scheduler

}  // namespace tw::emu
