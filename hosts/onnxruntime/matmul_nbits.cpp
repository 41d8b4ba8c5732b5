// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/matmul_nbits.h"

#include <cmath>
#include <cstring>

#include "hosts/onnxruntime/nbits.h"
#include "hosts/onnxruntime/packed_kernel.h"

namespace tilewright::onnxruntime {
namespace {

enum Input { kX, kCodes, kScales, kZeros, kGroups, kBias };

class MatMulNBits : public PackedKernel {
 public:
  MatMulNBits(Kernels& kernels, const OrtKernelInfo* info)
      : PackedKernel(kCodes, {kScales, kZeros, kGroups}),
        weights_(read_nbits(KernelNode(info))),
        storage_(storage_of(weights_)),
        linear_{.product = kernels.product(spec_of(weights_, storage_)),
                .n = weights_.n,
                .k = weights_.k,
                .order = storage_.order,
                .alpha = std::scalbn(1.0f, storage_.exponent),
                .bias = {}} {
    if (!weights_.bias) return;
    const auto element = static_cast<std::size_t>(linear_.product->spec().y_bytes());
    linear_.bias.resize(static_cast<std::size_t>(storage_.rows) * element);
    std::memcpy(linear_.bias.data(), weights_.bias->data, static_cast<std::size_t>(weights_.n) * element);
  }

 private:
  std::size_t packed_bytes() const override { return linear_.product->packed_bytes(); }

  void pack(std::byte* to) override {
    const Streams streams = streams_of(weights_, storage_);
    linear_.product->pack({.data = streams.data, .scales = streams.scales.data()}, to);
  }

  void compute(OrtKernelContext* context) override {
    const Tensor x = tensor_of(input_of(context, kX));
    must_have_columns("A", x, weights_.k);
    std::vector<std::int64_t> dims = x.dims;
    dims.back() = weights_.n;
    linear_.compute(packed(), x.data, x.rows(), output_of(context, 0, dims));
  }

  NBits weights_;  // whose tensors live until they are packed
  Storage storage_;
  Linear linear_;
};

}  // namespace

void take_matmul_nbits(Kernels& kernels, const Node& node) {
  const NBits w = read_nbits(node);
  kernels.product(spec_of(w, storage_of(w)));
}

OrtStatus* create_matmul_nbits(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded([&] { *kernel = new MatMulNBits(*static_cast<Kernels*>(kernels), info); });
}

}  // namespace tilewright::onnxruntime
