// SPDX-License-Identifier: Apache-2.0
// The built-in kernels for CPUs from x86-64-v3 on.
#pragma once

#include <tilewright/source.h>

#include "templates/cpu/options.h"
#include "templates/cpu/panels.h"

namespace tilewright::cpu {

inline constexpr int kFewTokens = 8, kFewPanels = 4, kManyPanels = 4, kManyTogether = 4;

struct NativeOptions {
  PanelCodes w = {};
  Input x = {};
  Epilogue e = {};
  int tokens = 0;             // of a tile
  Type floats = Type::f32;    // w, of cpu_floats
  int panels = 0, tiles = 0;  // of a block, of cpu_floats
  Filter filter = {};         // of cpu_columns
  int turns = 0;
};
using NativeFunction = void(const NativeOptions& options, const void* args, const void* constants, void* scratch,
                            std::int64_t block);
struct NativeKernel {
  NativeFunction* first = nullptr;
  NativeFunction* run = nullptr;
};
// Empty if there is none for these options. It is to be called with them.
NativeKernel native_v3_kernel(const NativeOptions& options);
NativeKernel native_v3_floats(const NativeOptions& options);     // cpu_floats
NativeKernel native_v3_depthwise(const NativeOptions& options);  // tokens: pixels, panels: vectors
NativeKernel native_v3_columns(const NativeOptions& options);    // cpu_columns

}  // namespace tilewright::cpu
