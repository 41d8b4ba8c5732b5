// SPDX-License-Identifier: Apache-2.0
// NVTX: ranges of time by name, which Nsight and other profilers show. Its library is opened at run time.
#pragma once

#include <string>

namespace tilewright::jit {

struct Nvtx {
  int (*push)(const char* name) = nullptr;
  int (*pop)() = nullptr;

  // `library`: a path, or "1" for the one that the loader finds. Without one, push is null and `why` has the reason.
  static Nvtx open(const std::string& library, std::string& why);
};

}  // namespace tilewright::jit
