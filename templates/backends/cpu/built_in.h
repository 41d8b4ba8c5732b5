// SPDX-License-Identifier: Apache-2.0
// Kernels that are built into the library, for machines without LLVM.
#pragma once

#include <tilewright/arch.h>
#include <tilewright/source.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace tilewright::cpu {

// Options: an operation's struct of what its kernels are written for, and their knobs.
template <class Options>
struct NativeKernel {
  using Function = void(const Options& options, const void* args, const void* constants, void* scratch,
                        std::int64_t block);
  Function* first = nullptr;  // null: it has no first phase
  Function* run = nullptr;
};

// Null if nothing is built in for such CPUs. v3 finds kernels for AVX2, FMA and F16C; v4 for AVX-512 with VNNI, and AMX
// where tiles are used. Either finds an empty one if there is none for these options; it is called with them.
template <class Options>
std::shared_ptr<const CpuKernel> built_in(const Options& options, const Arch& arch,
                                          NativeKernel<Options> (*v3)(const Options&),
                                          NativeKernel<Options> (*v4)(const Options&)) {
  const NativeKernel<Options> kernel = arch.cpu->vector_bytes == 64   ? v4(options)
                                       : arch.cpu->vector_bytes == 32 ? v3(options)
                                                                      : NativeKernel<Options>();
  if (!kernel.run) return nullptr;
  const auto bound = [&](typename NativeKernel<Options>::Function* f) -> std::function<CpuFunction> {
    if (!f) return {};
    return [options, f](const void* args, const void* constants, void* scratch, std::int64_t block) {
      f(options, args, constants, scratch, block);
    };
  };
  return std::make_shared<const CpuKernel>(CpuKernel{bound(kernel.first), bound(kernel.run)});
}

}  // namespace tilewright::cpu
