// SPDX-License-Identifier: Apache-2.0
// Gemm's kernels that are built in.
#pragma once

#include "templates/backends/cpu/built_in.h"
#include "templates/backends/cpu/panels.h"
#include "templates/operations/gemm/cpu/options.h"

namespace tilewright::cpu {

enum class KernelText { few, many, tiles, floats, bf16_tiles };

// What a kernel is written for, and its knobs, as the function of the text has them.
struct NativeOptions {
  KernelText text = KernelText::few;
  PanelCodes w = {};
  Type floats = Type::f32;  // w, of floats
  FloatScales float_scales = FloatScales::none;
  Input x = {};
  Epilogue e = {};
  int tokens = 0, panels = 0, ahead = 0, wide = 0, chunk = 0, together = 0, tiles = 0;
};
using NativeGemm = NativeKernel<NativeOptions>;
NativeGemm native_v3_gemm(const NativeOptions& options);
NativeGemm native_v4_gemm(const NativeOptions& options);

inline std::shared_ptr<const CpuKernel> built_in(const NativeOptions& options, const Arch& arch) {
  return built_in(options, arch, native_v3_gemm, native_v4_gemm);
}

}  // namespace tilewright::cpu
