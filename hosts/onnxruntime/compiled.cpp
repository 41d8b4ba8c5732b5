// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/compiled.h"

#include <utility>

namespace tilewright::onnxruntime {
namespace {

class CompiledProduct : public OrtNodeComputeInfo {
 public:
  CompiledProduct(Linear linear, Bytes packed, std::size_t input)
      : OrtNodeComputeInfo{}, input_(input), linear_(std::move(linear)), memory_(std::move(packed)) {
    ort_version_supported = kOrtApi;
    CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) noexcept -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    Compute = [](OrtNodeComputeInfo*, void* state, OrtKernelContext* context) noexcept {
      return guarded([&] { static_cast<const CompiledProduct*>(state)->compute(context); });
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  }

 private:
  void compute(OrtKernelContext* context) const {
    const Tensor x = tensor_of(input_of(context, input_));
    must_have_columns("A", x, linear_.k);
    std::vector<std::int64_t> dims = x.dims;
    dims.back() = linear_.n;
    void* const y = output_of(context, 0, dims);
    const OnThreadsOf threads(context);
    linear_.compute(memory_.get(), x.data, x.rows(), y);
  }

  std::size_t input_;
  Linear linear_;
  Bytes memory_;
};

}  // namespace

OrtNodeComputeInfo* compile(Linear linear, Bytes packed, std::size_t input) {
  return new CompiledProduct(std::move(linear), std::move(packed), input);
}

OrtNodeComputeInfo* compile(Kernels& kernels, const NBits& weights, std::size_t input) {
  const Storage storage = storage_of(weights);
  Linear linear = linear_of(kernels, weights, storage);
  Bytes packed = allocate(linear.packed_bytes());
  pack(linear, weights, storage, packed.get());
  return compile(std::move(linear), std::move(packed), input);
}

void release(OrtNodeComputeInfo* info) noexcept { delete static_cast<CompiledProduct*>(info); }

}  // namespace tilewright::onnxruntime
