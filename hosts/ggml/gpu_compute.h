// SPDX-License-Identifier: Apache-2.0
// Computing on a GPU. A Backend has a stream and scratch memory. compute() launches the kernels of a graph's node in
// the stream.
#pragma once

#include <tilewright/memory.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "hosts/ggml/gpu_memory.h"

namespace tilewright::ggml::gpu {

// Scratch memory that grows. Freeing it under queued kernels is safe: cuMemFree waits for them.
class DeviceScratch {
 public:
  std::byte* of(const Device& device, std::size_t bytes);
  void upload(const Device& device, std::span<const std::byte> bytes);

 private:
  Memory memory_;
};

struct Backend {
  explicit Backend(Gpu& on) : gpu(on), stream(on.kernels.device()) {}
  Gpu& gpu;
  OwnedStream stream;
  DeviceScratch w, x, y, cast, places;

  const Device& device() const { return gpu.kernels.device(); }
  void launch(const GpuProduct& product, const GemmArgs& args);
  // Bytes where kernels can read them.
  const std::byte* readable(const std::byte* bytes, std::int64_t count, DeviceScratch& room);
};
inline Backend& of(ggml_backend_t backend) { return *static_cast<Backend*>(backend->context); }

void compute(Backend& backend, const ggml_tensor* node);

}  // namespace tilewright::ggml::gpu
