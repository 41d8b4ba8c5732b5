// SPDX-License-Identifier: Apache-2.0
#include "tiles_native.h"

#if defined(__x86_64__)
#include <tilewright/gemm.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "templates/cpu/options.h"
#include "templates/cpu/panels.h"
#include "templates/gemm/params.cuh"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define TILEWRIGHT_CPU_KERNELS native_tiles
#include "templates/cpu/kernels.h"
#include "templates/cpu/native_v3.h"

namespace tilewright::test {
namespace {

struct Backend : cpu::NativeV3 {
  static Ptr stack(std::int64_t bytes) {
    alignas(64) thread_local char memory[64 << 10];
    return bytes <= static_cast<std::int64_t>(sizeof memory) ? memory : nullptr;
  }
};

Backend::Arguments arguments(const void* args, const void* constants, void* scratch, std::int64_t block) {
  return {static_cast<const char*>(args), static_cast<const char*>(constants), static_cast<const char*>(scratch),
          block};
}

}  // namespace

CpuKernel tiles_in_native(const cpu::PanelCodes& w, const cpu::Input& x, const cpu::Epilogue& e, int tokens, int chunk,
                          int together) {
  CpuKernel kernel;
  kernel.first = [=](const void* args, const void* constants, void* scratch, std::int64_t block) {
    Backend b;
    cpu::native_tiles::quantize(b, arguments(args, constants, scratch, block), x, cpu::native_tiles::kTileTokens, w);
  };
  kernel.run = [=](const void* args, const void* constants, void* scratch, std::int64_t block) {
    Backend b;
    cpu::native_tiles::by_tiles(b, arguments(args, constants, scratch, block), w, e, tokens, 4, chunk, together);
  };
  return kernel;
}

}  // namespace tilewright::test

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
namespace tilewright::test {
CpuKernel tiles_in_native(const cpu::PanelCodes&, const cpu::Input&, const cpu::Epilogue&, int, int, int) { return {}; }
}  // namespace tilewright::test
#endif
