// SPDX-License-Identifier: Apache-2.0
// The kernels by tiles (tiles.h, bf16_tiles.h) over plain C++ in place of AMX's instructions.
#pragma once

#include <tilewright/source.h>

#include "templates/backends/cpu/panels.h"
#include "templates/operations/gemm/cpu/options.h"

namespace tilewright::test {

// Four panels a block.
CpuKernel tiles_in_native(const cpu::PanelCodes& w, const cpu::Input& x, const cpu::Epilogue& e, int tokens, int chunk,
                          int together);
CpuKernel bf16_tiles_in_native(cpu::Type x, const cpu::Epilogue& e, int tokens, int panels, int chunk);

}  // namespace tilewright::test
