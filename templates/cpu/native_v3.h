// SPDX-License-Identifier: Apache-2.0
// The built-in kernels for CPUs from x86-64-v3 on.
#pragma once

#include <tilewright/source.h>

namespace tilewright::cpu {

inline constexpr int kFewTokens = 8, kFewPanels = 4, kManyPanels = 4;

struct NativeKernel {
  CpuFunction* first = nullptr;
  CpuFunction* run = nullptr;
};
// input: of kernels.h, as a number. Empty if there is none for these knobs.
NativeKernel native_v3_kernel(int input, int bits, bool bias, int tokens);

}  // namespace tilewright::cpu
