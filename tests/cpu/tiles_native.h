// SPDX-License-Identifier: Apache-2.0
// The kernel by tiles (kernels.h, by_tiles()) over plain C++ in place of AMX's instructions.
#pragma once

#include <tilewright/source.h>

#include "templates/cpu/panels.h"

namespace tilewright::test {

// Four panels a block, without bias. x, y: types as in kernels.h, by number.
CpuKernel tiles_in_native(const cpu::PanelCodes& w, int x, int y, int tokens, int chunk, int together);

}  // namespace tilewright::test
