// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/compiled.h"

namespace tilewright::onnxruntime {
namespace {

class CompiledProduct : public OrtNodeComputeInfo {
 public:
  CompiledProduct(Kernels& kernels, const NBits& w, std::size_t input) : OrtNodeComputeInfo{}, input_(input) {
    ort_version_supported = kOrtApi;
    CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) noexcept -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    Compute = [](OrtNodeComputeInfo*, void* state, OrtKernelContext* context) noexcept {
      return guarded([&] { static_cast<const CompiledProduct*>(state)->compute(context); });
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
    const Storage storage = storage_of(w);
    linear_ = linear_of(kernels, w, storage);
    memory_ = allocate(linear_.product->packed_bytes());
    const Streams streams = streams_of(w, storage);
    linear_.product->pack({.data = streams.data, .scales = streams.scales.data()}, memory_.get());
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

OrtNodeComputeInfo* compile(Kernels& kernels, const NBits& weights, std::size_t input) {
  return new CompiledProduct(kernels, weights, input);
}

void release(OrtNodeComputeInfo* info) noexcept { delete static_cast<CompiledProduct*>(info); }

}  // namespace tilewright::onnxruntime
