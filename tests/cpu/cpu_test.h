// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the CPU's part.
#pragma once

#include <tilewright/error.h>
#include <tilewright/kernel.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/refusal.h"

// For tests of what runs on CPUs with AVX2 alone.
#define TILEWRIGHT_NEEDS_KERNELS()            \
  if (host_arch().cpu->vector_bytes == 0) {   \
    WARN("not tested: this CPU has no AVX2"); \
    return;                                   \
  }                                           \
  static_assert(true)

namespace tilewright::test {

// The libLLVM that TILEWRIGHT_LLVM names, or what the library finds. Without one these tests fail: a build that cannot
// compile a kernel has not been tested.
inline CompileOptions llvm() {
  const char* path = std::getenv("TILEWRIGHT_LLVM");
  CompileOptions options;
  options.llvm = path ? path : "";
  return options;
}

inline Source ir(std::string text) {
  Source source;
  source.name = "test/ir";
  source.text = std::move(text);
  source.entry = "k";
  source.plan.threads = 1;
  return source;
}

// A kernel that writes the number of its block to y[block], for GemmArgs.
inline const char* const kNumbers =
    "define void @k(ptr %args, ptr %constants, ptr %scratch, i64 %block) #0 {\n"
    "  %y = load ptr, ptr %args, align 8\n"
    "  %at = getelementptr i64, ptr %y, i64 %block\n"
    "  store i64 %block, ptr %at, align 8\n"
    "  ret void\n"
    "}\n"
    "attributes #0 = { nounwind }\n";

}  // namespace tilewright::test
