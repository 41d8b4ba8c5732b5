// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/operations/matmul_nbits.h"

#include "hosts/onnxruntime/operations/nbits.h"
#include "hosts/onnxruntime/packed_kernel.h"

namespace tilewright::onnxruntime {
namespace {

class MatMulNBits : public PackedKernel {
 public:
  MatMulNBits(Kernels& kernels, const Node& node, const NBitsInputs& inputs)
      : PackedKernel(inputs.codes, {inputs.scales, inputs.zeros, inputs.groups}),
        input_(static_cast<std::size_t>(inputs.x)),
        weights_(read_nbits(node)),
        storage_(storage_of(weights_)),
        linear_(linear_of(kernels, weights_, storage_)) {}

 private:
  std::size_t packed_bytes() const override { return linear_.packed_bytes(); }

  void pack(std::byte* to) override { onnxruntime::pack(linear_, weights_, storage_, to); }

  void compute(OrtKernelContext* context) override {
    const Tensor x = tensor_of(input_of(context, input_));
    must_have_columns("A", x, weights_.k);
    std::vector<std::int64_t> dims = x.dims;
    dims.back() = weights_.n;
    linear_.compute(packed(), x.data, x.rows(), output_of(context, 0, dims));
  }

  std::size_t input_;
  NBits weights_;  // whose tensors live until they are packed
  Storage storage_;
  Linear linear_;
};

}  // namespace

void take_matmul_nbits(Kernels& kernels, const Node& node) {
  const NBits w = read_nbits(node);
  linear_of(kernels, w, storage_of(w));
}

OrtKernelImpl* make_matmul_nbits(Kernels& kernels, const Node& node, const NBitsInputs& inputs) {
  return new MatMulNBits(kernels, node, inputs);
}

OrtStatus* create_matmul_nbits(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded([&] { *kernel = make_matmul_nbits(*static_cast<Kernels*>(kernels), KernelNode(info), {}); });
}

}  // namespace tilewright::onnxruntime
