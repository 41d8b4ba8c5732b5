// SPDX-License-Identifier: Apache-2.0
// Launches of a recipe.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "hosts/tensorrt/recipe.h"
#include "hosts/tensorrt/runtime.h"

namespace tilewright::tensorrt {

// Offsets in the memory that TensorRT passes to a launch. Its content does not matter.
struct Scratch {
  std::size_t x = 0;           // the quantized x
  std::size_t stored[2] = {};  // transposed weights: data and scales, as their format stores them
  std::size_t packed[2] = {};  // and in the problem's order
  std::size_t x_bytes = 0, bytes = 0;
};
Scratch scratch_of(const Recipe& recipe, const Dims& x);

// Weights in device memory, which all copies of a plugin share. Thread-safe.
class DeviceWeights {
 public:
  // Constant weights. The first call on a device copies them.
  Operand constants(const Recipe& recipe, const Device& device);
  // The factor 1.
  const float* one(const Device& device);
  // The reordered copy of an input that is constant.
  std::optional<Operand> reordered(const Device& device, const void* data);
  // Keeps such a copy, unless there is one already; returns the one that is kept.
  Operand keep(const Device& device, const void* data, std::array<Memory, 2> memory, Operand w);

 private:
  struct Kept {
    std::array<Memory, 3> memory;
    Operand w;
  };
  std::mutex mutex_;
  std::map<int, Kept> constants_;
  std::map<int, Memory> ones_;
  std::map<std::pair<int, const void*>, Kept> reordered_;
};

// A plugin that is attached to an execution context.
class Execution {
 public:
  // Compiles what no cache has. `context`: TensorRT's resource context.
  Execution(std::shared_ptr<const Recipe> recipe, std::shared_ptr<DeviceWeights> weights, const void* context);

  // A candidate of the problem for the bucket of `rows`, instead of the layer's kernel there; empty: none. Compiles it
  // if no cache has it.
  void set_candidate(const std::string& candidate, std::int64_t rows);
  // Before the first launch with these shapes. A convolution of other extents may compile.
  void set_shapes(const Dims* inputs, std::int32_t count);
  void launch(const nvinfer1::PluginTensorDesc* shapes, const void* const* inputs, void* output, void* scratch,
              Stream stream);

 private:
  Operand weights(const std::array<const void*, kSlots>& given, std::byte* scratch, const Scratch& at, Stream stream);
  void launch_candidate(GemmArgs args, std::byte* scratch, Stream stream) const;
  template <class Args>
  void fill_in(Args& args, const std::array<const void*, kSlots>& given, void* output, std::byte* scratch,
               const Scratch& at, Stream stream);

  const std::shared_ptr<const Recipe> recipe_;
  const std::shared_ptr<DeviceWeights> weights_;
  const Device device_;
  std::shared_ptr<const Layer> layer_;
  std::shared_ptr<Workspaces> workspaces_;
  std::optional<Kernel> transpose_data_, transpose_scales_;
  std::optional<Kernel> candidate_, cast_;
  int bucket_ = 0;  // of the candidate
};

}  // namespace tilewright::tensorrt
