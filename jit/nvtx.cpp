// SPDX-License-Identifier: Apache-2.0
#include "jit/nvtx.h"

#include <dlfcn.h>

#include <vector>

#include "jit/shared_library.h"

namespace tilewright::jit {

Nvtx Nvtx::open(const std::string& library, std::string& why) {
  // CUDA 12 and older; from 13 on the functions are in a library of their own for programs that are not C.
  const std::vector<std::string> usual = {"libnvToolsExt.so.1", "libnvtx3interop.so.1", "libnvtx3interop.so"};
  std::string reasons;
  for (const std::string& name : library == "1" ? usual : std::vector{library}) {
    std::string reason;
    if (void* const handle = open_shared_library(name, reason)) {
      Nvtx nvtx;
      nvtx.push = reinterpret_cast<decltype(push)>(::dlsym(handle, "nvtxRangePushA"));
      nvtx.pop = reinterpret_cast<decltype(pop)>(::dlsym(handle, "nvtxRangePop"));
      if (nvtx.push && nvtx.pop) return nvtx;
      reason = name + ": has no functions nvtxRangePushA and nvtxRangePop";
    }
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  why = std::move(reasons);
  return {};
}

}  // namespace tilewright::jit
