// SPDX-License-Identifier: Apache-2.0
// A GPU as a device of ggml, and the buffers of its memory. A Buffer holds tensors in ggml's layout. It also packs the
// weights that products use.
#pragma once

#include <tilewright/layer.h>
#include <tilewright/memory.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "hosts/ggml/gpu_kernels.h"

namespace tilewright::ggml::gpu {

inline constexpr std::size_t kAlign = 256;

inline std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct Gpu {
  Gpu(Engine& engine, const Device& device)
      : kernels(engine, device), name("TilewrightGPU" + std::to_string(device.ordinal())), about(device.name()) {}
  GpuKernels kernels;
  std::string name, about;
  std::atomic<bool> failed = false;  // a transfer: what tensors hold is not known
  ggml_backend_device device = {};
  ggml_backend_buffer_type type = {};
};
inline Gpu& of(ggml_backend_dev_t device) { return *static_cast<Gpu*>(device->context); }

// ggml's callbacks must not throw. Logs the exception and returns false.
template <class Do>
bool logged(const char* what, const Do& action) {
  try {
    action();
    return true;
  } catch (const std::exception& e) {
    GGML_LOG_ERROR("tilewright: %s: %s\n", what, e.what());
    return false;
  }
}

// A weight tensor's matrices, packed for a layer, stored consecutively.
struct Packed {
  const void* end = nullptr;  // of the tensor
  Memory memory;
  std::size_t data_bytes = 0, matrix_bytes = 0;

  Packed(const Device& device, const Layer& by, const ggml_tensor* w);
  std::byte* matrix(std::int64_t i) const {
    return static_cast<std::byte*>(memory.data()) + static_cast<std::size_t>(i) * matrix_bytes;
  }
};

// Holds tensors in ggml's layout, and a packed copy of each weight tensor that a product has used.
class Buffer {
 public:
  Buffer(Gpu& gpu, std::size_t bytes) : gpu_(gpu), memory_(gpu.kernels.device(), std::max(bytes, kAlign)) {}

  void* data() const { return memory_.data(); }
  void set(const void* to, const void* from, std::size_t bytes);
  void get(const void* from, void* to, std::size_t bytes);
  void clear(std::uint8_t value);
  // The matrices of a tensor of weights. The first use packs them in `stream` and waits, so that any stream may read
  // them.
  const Packed& packed(const ggml_tensor* w, const Layer& layer, const OwnedStream& stream);

 private:
  std::size_t offset(const void* p) const;
  // Discards packed copies that overlap these bytes.
  void invalidate(const void* from, std::size_t bytes);

  Gpu& gpu_;
  std::mutex mutex_;
  Memory memory_;
  std::map<std::pair<const void*, const Layer*>, Packed> packed_;  // by the tensor's address
};
inline Buffer& of(ggml_backend_buffer_t buffer) { return *static_cast<Buffer*>(buffer->context); }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size);

}  // namespace tilewright::ggml::gpu
