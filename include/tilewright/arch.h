// SPDX-License-Identifier: Apache-2.0
// Arch: one GPU target per row of one table (templates/arch.cpp). Code asks for features and limits, never for a
// version number. Immutable.
#pragma once

#include <span>
#include <string_view>

#include <tilewright/export.h>

namespace tilewright {

struct Arch {
  const char* name;  // as NVRTC spells it: "sm_90a"
  int major, minor;
  bool cp_async;    // asynchronous global -> shared copies
  bool mma_bf16;    // m16n8k16 with bf16 operands (and f16 at that shape)
  bool mma_s8_k32;  // m16n8k32 with s8 operands
  bool mma_f8;      // native m16n8k32 with fp8 operands
  bool mma_scaled;  // mma.sync that applies scales of blocks: MXFP8, MXFP4, NVFP4 (the 'a' targets of 12.0 and 12.1)
  bool clusters;    // thread block clusters, distributed shared memory
  bool tma;         // bulk tensor copies on mbarriers
  bool wgmma;       // warpgroup matrix instructions (the 'a' target of compute capability 9.0)
  int shared_per_block;  // bytes, opt-in limit
  int shared_per_sm;     // bytes
  int threads_per_sm;
  // Typical device of this target: used by the cost model when no GPU is present.
  int typical_sms;
  double typical_tbps;      // memory bandwidth, TB/s
  double typical_mma16_tf;  // dense 16-bit mma.sync rate, TFLOP/s
  const char* run_on;  // device that kernels for it have run on, with results under bench/results; null: they have been
                       // compiled, and their text has run in the emulator
};

TILEWRIGHT_EXPORT std::span<const Arch> archs();

// By name ("sm_90a"). Throws Error (invalid_argument, lists the names).
TILEWRIGHT_EXPORT const Arch& arch(std::string_view name);

// The row for a device's compute capability. A chip newer than the table gets the nearest lower row of its major
// version whose name has no feature suffix; null when there is none.
TILEWRIGHT_EXPORT const Arch* arch_for(int major, int minor);

}  // namespace tilewright
