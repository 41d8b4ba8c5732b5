// SPDX-License-Identifier: Apache-2.0
// Kernels that begin before the one in front of them has ended.
#pragma once
#include <functional>
#include <initializer_list>
#include <vector>

#include "core/types.cuh"

namespace tw::emu {

// write() is called when a thread first waits for what came before (wait_prerequisite_grids): whoever reads earlier does not see
// it. True is returned by written() once it was.
void written_before(std::function<void()> write);
bool written();
// Of bytes that stay 0xff (of floats: NaN) until then.
void written_before(std::initializer_list<std::vector<u8>*> bytes);

}  // namespace tw::emu
