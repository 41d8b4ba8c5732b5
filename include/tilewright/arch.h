// SPDX-License-Identifier: Apache-2.0
// Arch: one target per row of a table: GPUs in templates/backends/cuda/arch.cpp, CPUs in
// templates/backends/cpu/arch.cpp. Code asks for features and limits, never for a version number. Immutable.
#pragma once

#include <span>
#include <string_view>

#include <tilewright/export.h>

namespace tilewright {

// What kernels for a CPU may use. A CPU of a row runs what is compiled for it, and nothing else is assumed.
struct CpuTarget {
  const char* triple;    // as LLVM spells it: "x86_64-unknown-linux-gnu"
  const char* features;  // of LLVM, all of them: "+avx2,+fma". No CPU's name is given to it
  int vector_bytes;      // of the vectors that kernels use; 0: no kernel but the plain reference
  int registers;         // that hold a vector
  bool dot4;             // adds products of four unsigned by signed bytes to 32-bit lanes (VPDPBUSD)
  bool signed_dot4;      // of signed by signed bytes instead (SDOT)
  bool tiles;            // multiplies tiles of bytes (AMX)
};

struct Arch {
  const char* name;  // as NVRTC spells it: "sm_90a"; of a CPU its level and what it has besides: "x86-64-v4+vnni"
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
  const CpuTarget* cpu = nullptr;  // null: a GPU. Of a CPU, the fields above that GPUs alone have are 0
};

TILEWRIGHT_EXPORT std::span<const Arch> archs();      // GPUs
TILEWRIGHT_EXPORT std::span<const Arch> cpu_archs();  // CPUs, each row after those whose features it has

// The last row of cpu_archs() whose features this machine's CPU and operating system have (CPUID and XCR0; names of
// CPUs say too little). Without AVX2, FMA and F16C that is the row without kernels.
TILEWRIGHT_EXPORT const Arch& host_arch();

// By name ("sm_90a", "x86-64-v3"). Throws Error (invalid_argument, lists the names).
TILEWRIGHT_EXPORT const Arch& arch(std::string_view name);

// The row of a GPU or generation by a name that people know, or of a compute capability however it is written: "H100",
// "hopper", "9.0", "sm90". Null if there is none.
TILEWRIGHT_EXPORT const Arch* arch_of_chip(std::string_view name);

// The row for a device's compute capability. A chip newer than the table gets the nearest lower row of its major
// version whose name has no feature suffix; null when there is none.
TILEWRIGHT_EXPORT const Arch* arch_for(int major, int minor);

}  // namespace tilewright
