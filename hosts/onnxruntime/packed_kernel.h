// SPDX-License-Identifier: Apache-2.0
// A node's kernel with weights that are packed once, when the session is made: by ONNX Runtime's prepacking, which
// frees the model's own tensor, or at the first run if the session does not prepack.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "hosts/onnxruntime/ort.h"
#include "hosts/onnxruntime/product.h"

namespace tilewright::onnxruntime {

class PackedKernel : public OrtKernelImpl {
 public:
  PackedKernel(const PackedKernel&) = delete;
  PackedKernel& operator=(const PackedKernel&) = delete;

 protected:
  // weights: the input with which pack() is called. `others`: inputs of which it takes what it needs.
  PackedKernel(int weights, std::vector<int> others);
  virtual ~PackedKernel() = default;

  virtual std::size_t packed_bytes() const = 0;
  virtual void pack(std::byte* to) = 0;  // while the model's tensors live
  virtual void compute(OrtKernelContext* context) = 0;

  const std::byte* packed() const { return packed_; }

 private:
  void pack_here();
  bool prepack(int input, OrtAllocator* allocator, OrtSharedPrePackedWeightCache* shared);

  int weights_;
  std::vector<int> others_;
  const std::byte* packed_ = nullptr;
  Bytes memory_;
  std::once_flag once_;
};

}  // namespace tilewright::onnxruntime
