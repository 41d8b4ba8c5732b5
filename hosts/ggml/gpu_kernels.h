// SPDX-License-Identifier: Apache-2.0
// The kernels of one GPU for ggml tensors: products, convolutions, and one that moves bytes.
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

// Pieces of `bytes` bytes, [shape[0], shape[1], shape[2], any number], from one place to another. If `at` is set, piece i
// is at[2 i] on the first axis and at[2 i + 1] on the second.
struct Move {
  struct Place {
    const void* data = nullptr;             // device memory
    std::array<std::int64_t, 4> steps = {};  // bytes from one piece to the next, of each axis
    const std::int32_t* at = nullptr;       // device memory
  };
  Place from, to;
  std::int64_t bytes = 0, count = 0;  // count: of all pieces
  std::array<std::int64_t, 3> shape = {1, 1, 1};
};

// y[m][n] of floats = x[m][k] * w[n][k].
struct GpuProduct {
  const Layer* many = nullptr;  // of any number of rows; packs the weights
  const Layer* few = nullptr;   // takes weights so, too, and is faster for few rows; null: there is none
  const Layer& of(std::int64_t rows) const { return few && rows <= few->problems().few ? *few : *many; }
};

// Thread-safe. Launches and their errors are those of Layer and Kernel.
class GpuKernels {
 public:
  GpuKernels(Engine& engine, const Device& device) : engine_(engine), device_(device) {}
  const Device& device() const { return device_; }

  // Whether kernels, and not only the reference, compute it. Compiles nothing.
  bool serve(const ggml_tensor* op);

  // `constant`: w is a model's, and may be packed.
  const GpuProduct& product(ggml_type w, ggml_type x, std::int64_t n, std::int64_t k, bool constant);
  const Layer& convolution(const ggml_tensor* op);
  void move(Stream stream, const Move& pieces);

 private:
  struct Slot {
    std::mutex mutex;
    std::optional<Layer> layer;
  };
  const Layer& layer(const std::string& key, const std::string& problem, const LayerOptions& options);

  Engine& engine_;
  Device device_;
  std::mutex mutex_;
  std::map<std::string, bool> served_;  // by problem and options, as slots_
  std::map<std::string, std::unique_ptr<Slot>> slots_;
  std::map<std::tuple<ggml_type, ggml_type, std::int64_t, std::int64_t, bool>, GpuProduct> products_;
  std::map<int, Kernel> moves_;                         // by bytes that a thread moves at once
};

}  // namespace tilewright::ggml
