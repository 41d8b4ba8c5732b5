// SPDX-License-Identifier: Apache-2.0
// The kernels that are built into the library, for machines without LLVM.
#pragma once

#include <tilewright/arch.h>
#include <tilewright/source.h>

#include <memory>

#include "templates/backends/cpu/panels.h"
#include "templates/operations/gemm/cpu/options.h"

namespace tilewright::cpu {

enum class KernelText { few, many, tiles, floats, bf16_tiles, columns, depthwise };

// What a kernel is written for, and its knobs, as the function of the text has them.
struct NativeOptions {
  KernelText text = KernelText::few;
  PanelCodes w = {};
  Type floats = Type::f32;  // w, of floats
  FloatScales float_scales = FloatScales::none;
  Input x = {};
  Epilogue e = {};
  Filter filter = {};  // of columns and depthwise
  int tokens = 0, panels = 0, ahead = 0, wide = 0, chunk = 0, together = 0, tiles = 0, turns = 0;
};
using NativeFunction = void(const NativeOptions& options, const void* args, const void* constants, void* scratch,
                            std::int64_t block);
struct NativeKernel {
  NativeFunction* first = nullptr;  // null: it has no first phase
  NativeFunction* run = nullptr;
};
// For AVX2, FMA and F16C; for AVX-512 with VNNI, and AMX where tiles are used. Empty if there is none for these
// options; it is to be called with them.
NativeKernel native_v3_kernel(const NativeOptions& options);
NativeKernel native_v4_kernel(const NativeOptions& options);

// Null if nothing is built in for such CPUs.
std::shared_ptr<const CpuKernel> built_in(const NativeOptions& options, const Arch& arch);

}  // namespace tilewright::cpu
