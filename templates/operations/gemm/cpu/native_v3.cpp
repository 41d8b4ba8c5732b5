// SPDX-License-Identifier: Apache-2.0
// The kernels that are built in for every CPU from x86-64-v3 on, with those knobs that serve most problems well.
#include "templates/operations/gemm/cpu/built_in.h"

#if defined(__x86_64__)
#include "templates/backends/cpu/panel_list.h"
#include "templates/operations/gemm/cpu/kernels_shared.h"

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
#include "templates/backends/cpu/native_v3.h"
#include "templates/operations/gemm/cpu/kernels.h"

namespace tilewright::cpu {
namespace {
using K = NativeV3;
}
}  // namespace tilewright::cpu
#define TW_KERNELS native_v3
#include "templates/operations/gemm/cpu/native_kernels.h"

namespace tilewright::cpu {

NativeKernel native_v3_kernel(const NativeOptions& o) {
  if (o.text == KernelText::floats) return of_floats<6, 1>(o);
  if (o.text == KernelText::columns) return of_columns<6>(o);
  if (o.text == KernelText::depthwise) return of_depthwise(o);
  NativeFunction* found = nullptr;
  if (o.text == KernelText::few) found = for_codes(o, [&](auto w) { return find_few<w.value>(o); });
  if (o.text == KernelText::many) found = for_codes(o, [&](auto w) { return find_many<w.value, 1, 4>(o); });
  return found ? NativeKernel{&quantize, found} : NativeKernel{};
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
}  // namespace tilewright::cpu
#endif
