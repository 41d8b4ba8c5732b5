// SPDX-License-Identifier: Apache-2.0
// cuDNN as the rival of convolutions: its backend (graph) API, opened at run time. Every plan that its heuristics offer
// is timed over rotating inputs in a CUDA graph, after its result was checked against sums formed on the host.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/conv.h>
#include <tilewright/engine.h>

#include "bench/rivals/cuda.h"
#include "bench/rivals/rival.h"

namespace tilewright::bench {

namespace cudnn {  // cudnn_graph.h
struct Inputs;
struct Graph;
}  // namespace cudnn

class Cudnn {
 public:
  // Looks for TILEWRIGHT_CUDNN, the loader's libcudnn.so.9, and among Python's packages (library_places()). Null if
  // there is none, or it has no handle for the device; `why` then says so. Needs a current context: a Cuda.
  static std::unique_ptr<Cudnn> open(const Device& device, const std::string& nvrtc, std::string& why);
  ~Cudnn();

  const std::string& path() const;
  std::string version() const;  // "9.19.0"

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Cudnn(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What the rival computes, with single precision sums unless said otherwise:
//   bf16, fp16   both operands and the result in it
//   tf32         f32 operands and result, which its matrix units round to TF32
//   fp8          e4m3 operands, with the units' own sums; to the first of bf16, e4m3 and f32 that it has plans for, as
//                they are or times a factor of the tensor
//   int8         to int32, and to int8: it has no int8 to bf16
inline constexpr const char* kCudnnRivals[] = {"bf16", "fp16", "tf32", "fp8", "int8"};

class CudnnRival {
 public:
  // Extents, axes and layouts are `conv`'s, which must be a convolution without cache and epilogue; formats follow from
  // `what`. Where cuDNN has no plan for padding that differs before and behind an axis, its input is already padded.
  // A plan that fails, wants more workspace than there is, or computes something else, is left out; notes() tells of
  // them. Once `seconds` are over no further plan is tried. `only`: names of plans (RivalTime::name) that an earlier
  // rival of the same convolution ended with; empty: all.
  CudnnRival(const Cudnn& library, const Cuda& cuda, const Device& device, const Engine& engine, std::string_view what,
             const Conv& conv, double cold_bytes, double seconds, const std::vector<std::string>& only = {});
  ~CudnnRival();

  std::vector<RivalTime>& times() { return times_; }  // the fastest plans
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<std::unique_ptr<cudnn::Inputs>> inputs_;
  std::vector<std::unique_ptr<cudnn::Graph>> graphs_;
  std::vector<RivalTime> times_;
  std::vector<std::string> notes_;
};

}  // namespace tilewright::bench
