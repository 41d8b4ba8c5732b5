// SPDX-License-Identifier: Apache-2.0
// A grouped gemm on a CPU is the plain kernel, once for each group: its launch has parts (CpuKernel::parts), of which
// each has the group's own operands and rows. The function that writes them is text and built in as kernels are.
#pragma once

#include <tilewright/gemm.h>
#include <tilewright/source.h>

#include "templates/backends/cpu/ir.h"

namespace tilewright::cpu {

// What a plain kernel's launch takes: of its blocks and memory (CpuLaunch), what does not depend on n and k.
struct PartGrid {
  int tokens = 1, columns = 1;    // of a block
  int tile = 1;                   // tokens side by side in scratch memory
  int block = 1, tile_bytes = 4;  // bytes there of so many columns of k of a tile, the last ones rounded up
};

// The plan of g's launch, given that of the same gemm without groups.
LaunchPlan with_parts(const Gemm& g, LaunchPlan plain);
void write_parts(Ir& ir, const std::string& entry, const Gemm& g, const PartGrid& grid);
// The built-in kernel of the same gemm without groups, with parts; null if there is none.
std::shared_ptr<const CpuKernel> with_parts(const Gemm& g, std::shared_ptr<const CpuKernel> plain,
                                            const PartGrid& grid);

}  // namespace tilewright::cpu
