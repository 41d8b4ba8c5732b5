// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/matmul_nbits.h"

#include <cmath>
#include <cstring>
#include <mutex>

#include "hosts/onnxruntime/nbits.h"

namespace tilewright::onnxruntime {
namespace {

enum Input { kX, kCodes, kScales, kZeros, kGroups, kBias };

std::shared_ptr<const Product> product_of(Kernels& kernels, const NBits& w, const Storage& s) {
  return kernels.product({.format = s.format,
                          .n = s.rows,
                          .k = s.cols,
                          .floats = float_format(w.type),
                          .quantizes = w.quantizes,
                          .bias = w.bias.has_value()});
}

class MatMulNBits : public OrtKernelImpl {
 public:
  MatMulNBits(Kernels& kernels, const OrtKernelInfo* info)
      : OrtKernelImpl{}, weights_(read_nbits(KernelNode(info))), storage_(storage_of(weights_)) {
    ort_version_supported = kOrtApi;
    Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept {
      return guarded([&] { static_cast<MatMulNBits*>(self)->compute(context); });
    };
    Release = [](OrtKernelImpl* self) noexcept { delete static_cast<MatMulNBits*>(self); };
    PrePackWeight = [](OrtKernelImpl* self, const OrtValue*, int index, OrtAllocator* allocator,
                       OrtSharedPrePackedWeightCache* shared, bool* packed) noexcept {
      return guarded([&] { *packed = static_cast<MatMulNBits*>(self)->prepack(index, allocator, shared); });
    };
    SetSharedPrePackedWeight = [](OrtKernelImpl* self, const void* const* data, const std::size_t*, std::size_t,
                                  int) noexcept -> OrtStatus* {
      static_cast<MatMulNBits*>(self)->linear_.packed = static_cast<const std::byte*>(data[0]);
      return nullptr;
    };
    linear_ = {.product = product_of(kernels, weights_, storage_),
               .n = weights_.n,
               .k = weights_.k,
               .order = storage_.order,
               .alpha = std::scalbn(1.0f, storage_.exponent),
               .bias = {}};
    if (weights_.bias) {
      const std::size_t element = weights_.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ? 4 : 2;
      linear_.bias.resize(static_cast<std::size_t>(storage_.rows) * element);
      std::memcpy(linear_.bias.data(), weights_.bias->data, static_cast<std::size_t>(weights_.n) * element);
    }
  }

 private:
  void pack(std::byte* to) {
    const Streams streams = streams_of(weights_, storage_);
    linear_.product->pack({.data = streams.data, .scales = streams.scales.data()}, to);
    linear_.packed = to;
  }
  void pack_here() {
    memory_ = allocate(linear_.product->packed_bytes());
    pack(memory_.get());
  }

  // All weights are packed with the codes. ONNX Runtime asks about the other ones later, and then frees them all.
  bool prepack(int index, OrtAllocator* allocator, OrtSharedPrePackedWeightCache* shared) {
    if (index != kCodes) return index == kScales || index == kZeros || index == kGroups;
    if (!shared) {
      std::call_once(packed_, [&] { pack_here(); });
      return true;
    }
    std::size_t bytes = linear_.product->packed_bytes();
    void* to = nullptr;
    check(g_api->AllocatorAlloc(allocator, bytes, &to));
    try {
      std::memset(to, 0, bytes);  // also what lies between the streams, since ONNX Runtime hashes the bytes
      std::call_once(packed_, [&] { pack(static_cast<std::byte*>(to)); });
      check(g_ep_api->SharedPrePackedWeightCache_StoreWeightData(shared, &to, &bytes, 1));
    } catch (...) {
      allocator->Free(allocator, to);
      throw;
    }
    return true;
  }

  void compute(OrtKernelContext* context) {
    std::call_once(packed_, [&] { pack_here(); });  // the session does not prepack
    const Tensor x = tensor_of(input_of(context, kX));
    if (x.dims.empty() || x.dims.back() != weights_.k)
      throw Error(ErrorCode::invalid_argument, "A", shape_text(x.dims),
                  "does not fit: its last dimension must be K, " + std::to_string(weights_.k));
    std::vector<std::int64_t> dims = x.dims;
    dims.back() = weights_.n;
    void* const y = output_of(context, 0, dims);
    const OnThreadsOf threads(context);
    linear_.compute(x.data, x.rows(), y);
  }

  NBits weights_;  // whose tensors live until they are packed
  Storage storage_;
  Linear linear_;
  Bytes memory_;
  std::once_flag packed_;
};

}  // namespace

void take_matmul_nbits(Kernels& kernels, const Node& node) {
  const NBits w = read_nbits(node);
  product_of(kernels, w, storage_of(w));
}

OrtStatus* create_matmul_nbits(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded([&] { *kernel = new MatMulNBits(*static_cast<Kernels*>(kernels), info); });
}

}  // namespace tilewright::onnxruntime
