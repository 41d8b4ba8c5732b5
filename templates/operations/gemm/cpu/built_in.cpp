// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/gemm/cpu/built_in.h"

namespace tilewright::cpu {

std::shared_ptr<const CpuKernel> built_in(const NativeOptions& options, const Arch& arch) {
#if defined(__x86_64__)
  const NativeKernel kernel = arch.cpu->vector_bytes == 64   ? native_v4_kernel(options)
                              : arch.cpu->vector_bytes == 32 ? native_v3_kernel(options)
                                                             : NativeKernel();
#else
  const NativeKernel kernel;
#endif
  if (!kernel.run) return nullptr;
  const auto bound = [options](NativeFunction* f) -> std::function<CpuFunction> {
    if (!f) return {};
    return [options, f](const void* args, const void* constants, void* scratch, std::int64_t block) {
      f(options, args, constants, scratch, block);
    };
  };
  return std::make_shared<const CpuKernel>(CpuKernel{bound(kernel.first), bound(kernel.run)});
}

}  // namespace tilewright::cpu
