// SPDX-License-Identifier: Apache-2.0
// The benchmarks, one function a table. Each prints its table and returns it as JSON.
#pragma once

#include <tilewright/tilewright.h>

#include <optional>

#include "bench/report.h"

namespace tilewright::bench {

struct Settings {
  std::string self;  // this program, for steps that need a fresh process
  std::string cache;
  int problems = 40, skip = 0;
  // gemm
  std::string pack = "tiles";
  std::string shapes, rows, ms;  // as on the command line; empty: the row's own
  std::string problem, list;     // sweep
  double seconds = 440;          // starts nothing new after that
  double tune_seconds = 6;       // of each problem
  int candidates = 16, rounds = 11;
  double sustained = 0;  // seconds in a row of each kernel that has a rival, besides; 0: none
  bool every_m = false;
  std::string layers, sizes;  // conv
  std::string layer;          // gptq: a folder with w.npy and h.npy
  bool host = false;          // gptq: on the host too
  int threads = 0;            // cpu: 0: as many as there are
  std::string target;         // cpu: CpuOptions::target
  std::string ggml;           // cpu: ggml's source folder
  double rival_seconds = 10;  // of plans of one of cuDNN's variants
  bool tuned = false;         // conv: choose by Engine::tune
  bool each = false;          // conv: print the time of each candidate
  bool profile = false;       // instead of timing: one launch of each kernel and of its fastest rival, for a profiler
};

Json compile_times();                            // offline.cpp: no device needed
Json prewarm_scaling(const Settings& settings);  // offline.cpp
Json code(const Settings& settings);             // code.cpp: fingerprints of machine code, no device needed
Json kernels(const Device& device);              // kernels.cpp: gemv and mma against the device's ceilings
// quantize.cpp: casts and what is fused with them, against copies
Json quantizing(const Device& device, const Settings& settings);
// cast_rows.cpp: the same at numbers of rows between those that were tuned
Json cast_rows(const Device& device, const Settings& settings);
Json gemms(const Device& device, const Settings& settings);    // gemm.cpp: against cuBLASLt, as its table asks
Json every_m(const Device& device, const Settings& settings);  // every_m.cpp: numbers of tokens between the buckets
Json sweep(const Device& device, const Settings& settings);    // sweep.cpp: candidates over numbers of tokens
Json grouped(const Device& device, const Settings& settings);  // grouped.cpp: against a cuBLASLt call per group
// x_from.cpp: x quantized by a cast, or by the gemm itself
Json x_from(const Device& device, const Settings& settings);
Json gptqs(const Device& device, const Settings& settings);  // gptq.cpp: a layer by GPTQ on the device
Json convs(const Device& device, const Settings& settings);  // conv.cpp: against cuDNN, as its table asks
Device cpu_device(const Settings& settings);                 // cpu.cpp: on which cpu() computes
Json cpu(const Settings& settings);                          // cpu.cpp: this machine's CPU, beside ggml
Json launch_costs(const Device& device);                     // host.cpp: prepare() hit, bucket choice, launch()
Json startup(const Settings& settings, const Device& d);     // host.cpp: second process
int startup_child(const Settings& settings, bool one);
Json regret(const Device& device, const Settings& settings);  // regret.cpp: choice against the exhaustive best

// Problems of distinct candidates for compile benchmarks.
std::vector<Problem> compile_problems();

}  // namespace tilewright::bench
