// SPDX-License-Identifier: Apache-2.0
// Convolutions that are built in for CPUs with AVX-512 and VNNI, with those knobs that serve most problems well.
#include "templates/operations/conv/cpu/native.h"

#if defined(__x86_64__) && !defined(TILEWRIGHT_NO_BUILT_IN_KERNELS)
#include "templates/backends/cpu/target_v4.h"
// In a namespace of this file alone: what another compiles for less would be as good to the linker.
#define TILEWRIGHT_CPU_KERNELS native_v4
#define TW_INLINE __attribute__((always_inline))
#include "templates/backends/cpu/native_v4.h"
#include "templates/operations/conv/cpu/columns.h"

namespace tilewright::cpu {
namespace {
using K = NativeV4;
}
}  // namespace tilewright::cpu
#define TW_KERNELS native_v4
#include "templates/operations/conv/cpu/native_kernels.h"

namespace tilewright::cpu {

NativeConv native_v4_conv(const NativeConvOptions& o) { return o.depthwise ? of_depthwise(o) : of_columns<12>(o); }

}  // namespace tilewright::cpu

#include "templates/backends/cpu/target_end.h"

#else
namespace tilewright::cpu {
NativeConv native_v4_conv(const NativeConvOptions&) { return {}; }
}  // namespace tilewright::cpu
#endif
