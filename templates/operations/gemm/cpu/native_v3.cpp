// SPDX-License-Identifier: Apache-2.0
// The kernels that are built in for every CPU from x86-64-v3 on, with those knobs that serve most problems well.
#include "templates/operations/gemm/cpu/native.h"

#if defined(__x86_64__) && !defined(TILEWRIGHT_NO_BUILT_IN_KERNELS)
#include "templates/backends/cpu/panel_list.h"
#include "templates/operations/gemm/cpu/kernels_shared.h"

#include "templates/backends/cpu/target_v3.h"
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

NativeGemm native_v3_gemm(const NativeOptions& o) {
  if (o.text == KernelText::floats) return of_floats<6, 1>(o);
  NativeGemm::Function* found = nullptr;
  if (o.text == KernelText::few) found = for_codes(o, [&](auto w) { return find_few<w.value>(o); });
  if (o.text == KernelText::many) found = for_codes(o, [&](auto w) { return find_many<w.value, 1, 4>(o); });
  return found ? NativeGemm{&quantize, found} : NativeGemm{};
}

}  // namespace tilewright::cpu

#include "templates/backends/cpu/target_end.h"

#else
namespace tilewright::cpu {
NativeGemm native_v3_gemm(const NativeOptions&) { return {}; }
}  // namespace tilewright::cpu
#endif
