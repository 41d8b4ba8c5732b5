// SPDX-License-Identifier: Apache-2.0
// Kernels that begin before the one in front of them has ended.
#pragma once
#include <functional>

namespace tw::emu {

// write() is called when a thread first waits for what came before (wait_prerequisite_grids): whoever reads earlier does not see
// it. True is returned by written() once it was.
void written_before(std::function<void()> write);
bool written();

}  // namespace tw::emu
