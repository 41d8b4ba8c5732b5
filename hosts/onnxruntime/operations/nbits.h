// SPDX-License-Identifier: Apache-2.0
// Weights of few bits in the library's formats: w[n][k] = (code - zero point) * scale, where `block` columns of a row
// share a scale. They come from com.microsoft.MatMulNBits, and in its layout from other operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hosts/onnxruntime/ort.h"
#include "hosts/onnxruntime/product.h"

namespace tilewright::onnxruntime {

class Kernels;

struct NBits {
  std::int64_t n = 0, k = 0, bits = 0, block = 0, blocks = 0;  // blocks: of a row, the last of which may be short
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;  // of x, y, scales and bias
  bool quantizes = false;                                                    // accuracy_level 4
  bool fp8 = false;                                                          // codes are E4M3, without zero points
  Tensor codes, scales;                                                      // scales: of `type`
  std::optional<Tensor> zeros, groups, bias;                                 // groups: g_idx

  std::uint32_t code(std::int64_t row, std::int64_t column) const;
  float zero(std::int64_t row, std::int64_t block) const;
};

// Throws Error: invalid_argument for a model that is wrong, unsupported for what is left to ONNX Runtime.
NBits read_nbits(const Node& node);

// How the weights are stored. Where a row has one scale, in formats whose scales are floats; else in halves.
struct Storage {
  std::string format;
  bool by_rows = false;
  int group = 0;                    // columns that share a scale in the format
  bool zeros = false;               // whether the format has zero points
  bool offsets = false;             // whether zero points become Linear::offsets, since no format of 8 bits has them
  std::int64_t rows = 0, cols = 0;  // n and k as stored
  std::vector<std::int32_t> order;  // Linear::order
  int exponent = 0;                 // scales are divided by 2^exponent, which fits them into half precision
};
// Throws Error (unsupported). It does not read the codes.
Storage storage_of(const NBits& w);

// The product of x by them, for which the kernels are prepared.
Spec spec_of(const NBits& w, const Storage& storage);
// Without the packed weights. Prepares the kernels.
Linear linear_of(Kernels& kernels, const NBits& w, const Storage& storage);
// `to`: packed_bytes() of the linear.
void pack(const Linear& linear, const NBits& w, const Storage& storage, std::byte* to);

}  // namespace tilewright::onnxruntime
