// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as the rival that ratios are taken against: opened at run time, every algorithm its heuristic offers timed
// over rotating inputs in a CUDA graph, its results checked against products formed on the host.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/engine.h>

#include "bench/rivals/cuda.h"
#include "bench/rivals/rival.h"

namespace tilewright::bench {

class CublasLt {
 public:
  // Looks for TILEWRIGHT_CUBLASLT, the loader's libcublasLt.so.13 and .12, the folder of `nvrtc` (NVIDIA's wheels lie
  // side by side), the usual folders of toolkits and Python packages. Null if there is none; `why` then says so.
  static std::unique_ptr<CublasLt> open(const Device& device, const std::string& nvrtc, std::string& why);
  ~CublasLt();

  const std::string& path() const;
  std::string version() const;  // "13.1.0"

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit CublasLt(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What the rival computes: a list of variants, of which the fastest counts.
//   bf16, fp16   both operands and the result in it
//   fp8          e4m3 with a scale per tensor, result bf16, each with and without fast accumulation
//   fp8+rows     those, and with scales per row of x and of w where this version has them
//   int8         to int32, and to int8 by a float factor: cuBLASLt has no int8 to bf16
class Rival {
 public:
  // Fills its inputs from the library's own formats, finds the fastest algorithms and checks their results. A variant
  // that this cuBLASLt does not have, or that computes something else, is left out and named in notes(). `engine` lends
  // the formats' fill.
  Rival(const CublasLt& library, const Cuda& cuda, const Device& device, const Engine& engine, std::string_view what,
        std::int64_t m, std::int64_t n, std::int64_t k, double cold_bytes);
  ~Rival();

  std::vector<RivalTime>& times() { return times_; }
  const std::vector<std::string>& notes() const { return notes_; }
  std::size_t bytes() const;

 private:
  struct Plan;
  struct Inputs;
  struct Expected;
  static std::vector<Expected> expectations(const Plan& plan);
  static double worst(const Plan& plan, std::span<const Expected> expected);
  std::unique_ptr<Inputs> inputs_;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::vector<RivalTime> times_;
  std::vector<std::string> notes_;
};

}  // namespace tilewright::bench
