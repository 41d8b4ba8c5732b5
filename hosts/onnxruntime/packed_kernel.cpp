// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/packed_kernel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

PackedKernel::PackedKernel(int weights, std::vector<int> others)
    : OrtKernelImpl{}, weights_(weights), others_(std::move(others)) {
  ort_version_supported = kOrtApi;
  Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept {
    return guarded([&] {
      auto* kernel = static_cast<PackedKernel*>(self);
      std::call_once(kernel->once_, [&] { kernel->pack_here(); });
      const OnThreadsOf threads(context);
      kernel->compute(context);
    });
  };
  Release = [](OrtKernelImpl* self) noexcept { delete static_cast<PackedKernel*>(self); };
  PrePackWeight = [](OrtKernelImpl* self, const OrtValue*, int input, OrtAllocator* allocator,
                     OrtSharedPrePackedWeightCache* shared, bool* packed) noexcept {
    return guarded([&] { *packed = static_cast<PackedKernel*>(self)->prepack(input, allocator, shared); });
  };
  SetSharedPrePackedWeight = [](OrtKernelImpl* self, const void* const* data, const std::size_t*, std::size_t,
                                int) noexcept -> OrtStatus* {
    static_cast<PackedKernel*>(self)->packed_ = static_cast<const std::byte*>(data[0]);
    return nullptr;
  };
}

void PackedKernel::pack_here() {
  memory_ = allocate(packed_bytes());
  pack(memory_.get());
  packed_ = memory_.get();
}

// ONNX Runtime asks about the other inputs later, and frees what is packed.
bool PackedKernel::prepack(int input, OrtAllocator* allocator, OrtSharedPrePackedWeightCache* shared) {
  if (input != weights_) return std::find(others_.begin(), others_.end(), input) != others_.end();
  std::call_once(once_, [&] {
    if (!shared) return pack_here();
    std::size_t bytes = packed_bytes();
    void* to = nullptr;
    check(g_api->AllocatorAlloc(allocator, bytes, &to));
    try {
      std::memset(to, 0, bytes);  // also what lies between the streams, since ONNX Runtime hashes the bytes
      pack(static_cast<std::byte*>(to));
      check(g_ep_api->SharedPrePackedWeightCache_StoreWeightData(shared, &to, &bytes, 1));
    } catch (...) {
      allocator->Free(allocator, to);
      throw;
    }
    packed_ = static_cast<const std::byte*>(to);
  });
  return true;
}

}  // namespace tilewright::onnxruntime
