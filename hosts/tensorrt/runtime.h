// SPDX-License-Identifier: Apache-2.0
// What all plugins of a process share: the engine of kernels, their layers, and memory that launches leave zero.
// Functions are thread-safe and throw the errors of the library.
#pragma once

#include <tilewright/engine.h>
#include <tilewright/layer.h>
#include <tilewright/memory.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace tilewright::tensorrt {

// With the options of the environment, and TensorRT's logger. Never destroyed: engines may outlive main().
Engine& engine();

// The device of the thread's current context, else the first one. None: there is no GPU.
std::optional<Device> current_device();
bool capturing(Stream stream);

// Prepared once for each device. Compiles what no cache has.
std::shared_ptr<const Layer> layer_of(const Device& device, const Problem& problem, const LayerOptions& options);

// Gemm::workspace of the plugins of one execution context. Its layers run one after the other, except on other streams:
// each stream has its own. Memory cannot be allocated while a stream is captured. Therefore one is kept ready.
class Workspaces {
 public:
  // Those of this execution context, which its plugins share. `context`: the resource context that TensorRT passes.
  static std::shared_ptr<Workspaces> of(const void* context, const Device& device);
  explicit Workspaces(const Device& device) : device_(device) {}

  void reserve(std::size_t bytes);  // for plugins that are attached
  // Throws Error (would_tune) if the stream is captured, nothing is ready, and nothing was launched on it before.
  void* on(Stream stream);

 private:
  Memory allocate() const;

  const Device device_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  Memory ready_;
  std::map<Stream, Memory> used_;
};

}  // namespace tilewright::tensorrt
