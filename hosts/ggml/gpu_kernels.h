// SPDX-License-Identifier: Apache-2.0
// The kernels of one GPU for ggml tensors: products, convolutions, and a strided copy.
#pragma once

#include <tilewright/layer.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "ggml.h"

namespace tilewright::ggml {

// Copies `count` pieces of `bytes` bytes between strided 4-D layouts; the last extent is implied. If `at` is set, piece
// i is at index at[2 i] of axis 0 and at[2 i + 1] of axis 1.
struct StridedCopy {
  struct Place {
    const void* data = nullptr;              // device memory
    std::array<std::int64_t, 4> steps = {};  // bytes from one piece to the next, of each axis
    const std::int32_t* at = nullptr;        // device memory
  };
  Place from, to;
  std::int64_t bytes = 0, count = 0;  // count: of all pieces
  std::array<std::int64_t, 3> shape = {1, 1, 1};
};

// y[m][n] of floats = x[m][k] * w[n][k].
struct GpuProduct {
  const Layer* main = nullptr;     // for any m; its layout is the packed one
  const Layer* small_m = nullptr;  // reads the same packed w and is faster for few rows; may be null
  const Layer& layer_for(std::int64_t m) const { return small_m && m <= small_m->problems().few ? *small_m : *main; }
};

// Thread-safe. Launches and their errors are those of Layer and Kernel.
class GpuKernels {
 public:
  GpuKernels(Engine& engine, const Device& device) : engine_(engine), device_(device) {}
  const Device& device() const { return device_; }

  // Whether a fast kernel, not just the reference, supports it. Compiles nothing.
  bool supports(const ggml_tensor* op);

  // `constant`: w never changes, and may be packed.
  const GpuProduct& product(ggml_type w, ggml_type x, std::int64_t n, std::int64_t k, bool constant);
  const Layer& convolution(const ggml_tensor* op);
  void copy(Stream stream, const StridedCopy& copy);

 private:
  struct Slot {
    std::mutex mutex;
    std::optional<Layer> layer;
  };
  const Layer& layer(const std::string& key, const std::string& problem, const LayerOptions& options);

  Engine& engine_;
  Device device_;
  std::mutex mutex_;
  std::map<std::string, bool> supported_;  // by problem and options, as slots_
  std::map<std::string, std::unique_ptr<Slot>> slots_;
  std::map<std::tuple<ggml_type, ggml_type, std::int64_t, std::int64_t, bool>, GpuProduct> products_;
  std::map<int, Kernel> copies_;  // by bytes that a thread moves at once
};

}  // namespace tilewright::ggml
