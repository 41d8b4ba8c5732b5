// SPDX-License-Identifier: Apache-2.0
// The weights of com.microsoft.MatMulNBits in the library's formats: w[n][k] = (code - zero point) * scale, where
// `block` columns of a row share a scale.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hosts/onnxruntime/ort.h"
#include "hosts/onnxruntime/product.h"

namespace tilewright::onnxruntime {

struct NBits {
  std::int64_t n = 0, k = 0, bits = 0, block = 0, blocks = 0;  // blocks: of a row, the last of which may be short
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;  // of x, y, scales and bias
  bool quantizes = false;                                                    // accuracy_level 4
  Tensor codes, scales;
  std::optional<Tensor> zeros, groups, bias;  // groups: g_idx

  std::uint32_t code(std::int64_t row, std::int64_t column) const;
  float zero(std::int64_t row, std::int64_t block) const;
};

// Throws Error: invalid_argument for a model that is wrong, unsupported for what is left to ONNX Runtime.
NBits read_nbits(const Node& node);

// How the weights are stored.
struct Storage {
  std::string format;
  int group = 0;                    // columns that share a scale in the format
  bool zeros = false;               // whether the format has zero points
  std::int64_t rows = 0, cols = 0;  // n and k as stored
  std::vector<std::int32_t> order;  // Linear::order
  int exponent = 0;                 // scales are divided by 2^exponent, which fits them into half precision
};
// Throws Error (unsupported).
Storage storage_of(const NBits& w);

// The streams of the format. `data` may be the model's own tensor.
struct Streams {
  std::vector<std::byte> memory, scales;
  const void* data = nullptr;
};
Streams streams_of(const NBits& w, const Storage& storage);

}  // namespace tilewright::onnxruntime
