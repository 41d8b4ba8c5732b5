// SPDX-License-Identifier: Apache-2.0
#include "tiles_native.h"

#if defined(__x86_64__)
#include <cmath>

#include "templates/operations/gemm/cpu/kernels_shared.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define TILEWRIGHT_CPU_KERNELS native_tiles
#define TW_INLINE
#include "templates/backends/cpu/native_v3.h"
#include "templates/operations/gemm/cpu/kernels.h"

namespace tilewright::test {
namespace {

struct Backend : cpu::NativeV3 {
  static Ptr stack(std::int64_t bytes) {
    alignas(64) thread_local char memory[68 << 10];
    return bytes <= static_cast<std::int64_t>(sizeof memory) ? memory : nullptr;
  }

  // TDPBF16PS as Intel's manual writes it down: subnormal numbers are 0 on the way in and out.
  struct Tile {
    char rows[16][64];
  };
  std::array<Tile, 8> tiles;
  void load_tile(int tile, Ptr p, std::int64_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(tiles[tile].rows[r], p + r * stride, 64);
  }
  void store_tile(int tile, Ptr p, std::int64_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(const_cast<char*>(p) + r * stride, tiles[tile].rows[r], 64);
  }
  static float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }
  static float element(const Tile& t, int row, int column) {
    std::uint16_t upper;
    std::memcpy(&upper, t.rows[row] + 2 * column, sizeof upper);
    const std::uint32_t bits = std::uint32_t{upper} << 16;
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return flushed(v);
  }
  void add_bf16_products(int sums, int x, int w) {
    for (int token = 0; token < 16; ++token)
      for (int row = 0; row < 16; ++row) {
        float of[2] = {0, 0}, sum;
        for (int pair = 0; pair < 16; ++pair)
          for (int i = 0; i < 2; ++i)
            of[i] =
                flushed(std::fma(element(tiles[x], token, 2 * pair + i), element(tiles[w], pair, 2 * row + i), of[i]));
        char* const at = tiles[sums].rows[token] + 4 * row;
        std::memcpy(&sum, at, sizeof sum);
        sum = flushed(flushed(sum) + flushed(of[0] + of[1]));
        std::memcpy(at, &sum, sizeof sum);
      }
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

CpuKernel bf16_tiles_in_native(cpu::Type x, const cpu::Epilogue& e, int tokens, int panels, int chunk) {
  CpuKernel kernel;
  kernel.first = [=](const void* args, const void* constants, void* scratch, std::int64_t block) {
    Backend b;
    cpu::native_tiles::narrow(b, arguments(args, constants, scratch, block), x, tokens, chunk);
  };
  kernel.run = [=](const void* args, const void* constants, void* scratch, std::int64_t block) {
    Backend b;
    cpu::native_tiles::bf16_tiles(b, arguments(args, constants, scratch, block), e, tokens, panels, chunk);
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
CpuKernel bf16_tiles_in_native(cpu::Type, const cpu::Epilogue&, int, int, int) { return {}; }
}  // namespace tilewright::test
#endif
