// SPDX-License-Identifier: Apache-2.0
// The kernels that are built in, for every CPU from x86-64-v3 on, with those knobs that serve most problems well.
#include "templates/cpu/native_v3.h"

#if defined(__x86_64__)
// Everything that the kernels share with other files comes before the pragma, for any CPU.
#include <tilewright/gemm.h>

#include <array>
#include <cstring>
#include <span>

#include "templates/gemm/params.cuh"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma,f16c")
#endif
// In a namespace of this file alone: what another compiles for less would be as good to the linker.
#define TILEWRIGHT_CPU_KERNELS native_v3
#include "templates/cpu/kernels.h"
#include "templates/cpu/native.h"

namespace tilewright::cpu {
namespace {

using K = Native;

template <int n>
using Fixed = std::integral_constant<int, n>;

K::Arguments arguments(const void* args, const void* constants, void* scratch, std::int64_t block) {
  return {static_cast<K::Ptr>(args), static_cast<K::Ptr>(constants), static_cast<K::Ptr>(scratch), block};
}

template <int input, int tokens, int offset>
void first(const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v3::quantize(k, arguments(args, constants, scratch, block), static_cast<native_v3::Input>(input),
                      Fixed<tokens>(), {8, offset});
}
template <int bits, int offset, bool bias, int tokens>
void run(const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  constexpr native_v3::PanelCodes w{bits, offset};
  if constexpr (tokens <= kFewTokens)
    native_v3::few(k, arguments(args, constants, scratch, block), w, bias, Fixed<tokens>(), kFewPanels, Fixed<0>());
  else
    native_v3::many(k, arguments(args, constants, scratch, block), w, bias, Fixed<tokens>(), kManyPanels, Fixed<1>());
}

template <int tokens>
CpuFunction* find_first(int input, int offset) {
  if (offset == 8) return input == 0 ? &first<0, tokens, 8> : &first<1, tokens, 8>;
  return input == 0 ? &first<0, tokens, 128> : &first<1, tokens, 128>;
}
template <int tokens>
CpuFunction* find_run(int bits, bool bias) {
  if (bits == 4) return bias ? &run<4, 8, true, tokens> : &run<4, 8, false, tokens>;
  return bias ? &run<8, 128, true, tokens> : &run<8, 128, false, tokens>;
}

}  // namespace

NativeKernel native_v3_kernel(int input, int bits, bool bias, int tokens) {
  const int offset = bits == 4 ? 8 : 128;
  switch (tokens) {
    case 1: return {find_first<1>(input, offset), find_run<1>(bits, bias)};
    case 4: return {find_first<4>(input, offset), find_run<4>(bits, bias)};
    case 64: return {find_first<64>(input, offset), find_run<64>(bits, bias)};
    default: return {};
  }
}

}  // namespace tilewright::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
namespace tilewright::cpu {
NativeKernel native_v3_kernel(int, int, bool, int) { return {}; }
}  // namespace tilewright::cpu
#endif
