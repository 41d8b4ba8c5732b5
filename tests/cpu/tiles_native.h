// SPDX-License-Identifier: Apache-2.0
// The kernel by tiles (kernels.h, by_tiles()) over plain C++ in place of AMX's instructions.
#pragma once

#include <tilewright/source.h>

#include "templates/cpu/options.h"
#include "templates/cpu/panels.h"

namespace tilewright::test {

// Four panels a block.
CpuKernel tiles_in_native(const cpu::PanelCodes& w, const cpu::Input& x, const cpu::Epilogue& e, int tokens, int chunk,
                          int together);

}  // namespace tilewright::test
