// SPDX-License-Identifier: Apache-2.0
// The kernels that are built in, for every CPU from x86-64-v3 on, with those knobs that serve most problems well.
#include "templates/cpu/native_v3.h"

#if defined(__x86_64__)
// Everything that the kernels share with other files comes before the pragma, for any CPU.
#include <tilewright/conv.h>
#include <tilewright/gemm.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "templates/conv/params.cuh"
#include "templates/cpu/options.h"
#include "templates/cpu/panels.h"
#include "templates/gemm/params.cuh"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma,f16c")
// GCC 12 warns of turns of a loop that it peels although they are not reached.
#pragma GCC diagnostic ignored "-Warray-bounds"
#endif
// In a namespace of this file alone: what another compiles for less would be as good to the linker.
#define TILEWRIGHT_CPU_KERNELS native_v3
#define TW_INLINE __attribute__((always_inline))
#include "templates/cpu/kernels.h"
#define TILEWRIGHT_CPU_KERNELS native_v3
#include "templates/cpu/floats.h"
#define TILEWRIGHT_CPU_KERNELS native_v3
#include "templates/cpu/columns.h"
#include "templates/cpu/native.h"

namespace tilewright::cpu {
namespace {

using K = Native;

template <int n>
using Fixed = std::integral_constant<int, n>;
template <PanelCodes w>
using Codes = std::integral_constant<PanelCodes, w>;

K::Arguments arguments(const void* args, const void* constants, void* scratch, std::int64_t block) {
  return {static_cast<K::Ptr>(args), static_cast<K::Ptr>(constants), static_cast<K::Ptr>(scratch), block};
}

void first(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v3::quantize(k, arguments(args, constants, scratch, block), o.x, o.tokens, o.w);
}
template <PanelCodes w, int tokens>
void run(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  if constexpr (tokens <= kFewTokens)
    native_v3::few(k, arguments(args, constants, scratch, block), Codes<w>(), o.e, Fixed<tokens>(), kFewPanels,
                   Fixed<0>());
  else
    native_v3::many(k, arguments(args, constants, scratch, block), Codes<w>(), o.e, Fixed<tokens>(), kManyPanels,
                    Fixed<1>(), Fixed<kManyTogether>());
}

template <PanelCodes w>
NativeFunction* find_run(int tokens) {
  return tokens == 1 ? &run<w, 1> : tokens == 4 ? &run<w, 4> : tokens == 64 ? &run<w, 64> : nullptr;
}
template <std::size_t... i>
NativeFunction* find_run(const NativeOptions& o, std::index_sequence<i...>) {
  NativeFunction* found = nullptr;
  ((o.w == kPanelCodes[i] ? void(found = find_run<kPanelCodes[i]>(o.tokens)) : void()), ...);
  return found;
}

void first_of_floats(const NativeOptions& o, const void* args, const void* constants, void* scratch,
                     std::int64_t block) {
  K k;
  native_v3::widen(k, arguments(args, constants, scratch, block), o.x.type, o.tokens);
}
template <Type w, int tokens, int panels>
void run_floats(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v3::floats(k, arguments(args, constants, scratch, block), std::integral_constant<Type, w>(), o.e,
                    Fixed<tokens>(), Fixed<panels>(), o.tiles);
}
template <Type w>
NativeFunction* find_floats(const NativeOptions& o) {
  if (o.floats != w) return nullptr;
  return o.tokens == 1 && o.panels == 4   ? &run_floats<w, 1, 4>
         : o.tokens == 6 && o.panels == 1 ? &run_floats<w, 6, 1>
                                          : nullptr;
}

void first_of_columns(const NativeOptions& o, const void* args, const void* constants, void* scratch,
                      std::int64_t block) {
  K k;
  native_v3::widen_weights(k, arguments(args, constants, scratch, block), o.filter);
}
// A block of any knobs, by tiles of its own: sums are the same.
constexpr int kColumnTokens = 6;
int column_tiles(const NativeOptions& o) { return (o.tokens * o.tiles + kColumnTokens - 1) / kColumnTokens; }
void run_columns(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v3::columns(k, arguments(args, constants, scratch, block), o.filter, o.tokens * o.tiles,
                     Fixed<kColumnTokens>(), Fixed<1>(), column_tiles(o), o.panels * o.turns);
}
void first_of_depthwise(const NativeOptions& o, const void* args, const void* constants, void* scratch,
                        std::int64_t block) {
  K k;
  native_v3::widen_filters(k, arguments(args, constants, scratch, block), o.filter);
}
void run_depthwise(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v3::depthwise(k, arguments(args, constants, scratch, block), o.filter, o.tokens, Fixed<4>());
}

}  // namespace

NativeKernel native_v3_depthwise(const NativeOptions& o) {
  return o.panels == 4 ? NativeKernel{&first_of_depthwise, &run_depthwise} : NativeKernel{};
}

NativeKernel native_v3_columns(const NativeOptions& o) {
  const std::int64_t stack = native_v3::columns_stack(kColumnTokens, 1, column_tiles(o), o.panels * o.turns);
  return stack <= Native::kMostStack ? NativeKernel{&first_of_columns, &run_columns} : NativeKernel{};
}

NativeKernel native_v3_floats(const NativeOptions& o) {
  NativeFunction* found = find_floats<Type::f32>(o);
  if (!found) found = find_floats<Type::f16>(o);
  if (!found) found = find_floats<Type::bf16>(o);
  return found ? NativeKernel{&first_of_floats, found} : NativeKernel{};
}

NativeKernel native_v3_kernel(const NativeOptions& o) {
  NativeFunction* const found = find_run(o, std::make_index_sequence<std::size(kPanelCodes)>());
  return found ? NativeKernel{&first, found} : NativeKernel{};
}

}  // namespace tilewright::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
namespace tilewright::cpu {
NativeKernel native_v3_kernel(const NativeOptions&) { return {}; }
NativeKernel native_v3_floats(const NativeOptions&) { return {}; }
NativeKernel native_v3_columns(const NativeOptions&) { return {}; }
NativeKernel native_v3_depthwise(const NativeOptions&) { return {}; }
}  // namespace tilewright::cpu
#endif
