// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/operations/dequantized.h"

#include <algorithm>
#include <cstring>

#include "hosts/onnxruntime/compiled.h"

namespace tilewright::onnxruntime {
namespace {

[[noreturn]] void refuse(const char* field, const std::string& value, const std::string& why) {
  throw Error(ErrorCode::unsupported, field, value, why);
}

// How a type of weights is stored: the code of an element, a number from 0, is its value plus `middle`.
struct Codes {
  int bits, middle;
  bool fp8 = false;
};
std::optional<Codes> codes_of(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4: return Codes{4, 8};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4: return Codes{4, 0};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2: return Codes{2, 2};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2: return Codes{2, 0};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return Codes{8, 128};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return Codes{8, 0};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN: return Codes{8, 0, true};
    default: return {};
  }
}

// Element i of a tensor of such a type, as a code. Elements of few bits lie lowest bit first.
std::uint32_t code_at(const Tensor& t, const Codes& codes, std::int64_t i) {
  const std::int64_t bit = i * codes.bits;
  const std::uint32_t raw = static_cast<const std::uint8_t*>(t.data)[bit / 8] >> bit % 8 & ((1u << codes.bits) - 1);
  // A signed number and its code differ in the highest bit.
  return codes.middle ? raw ^ (1u << (codes.bits - 1)) : raw;
}

// Weights in the layout of MatMulNBits, with the memory of what it has no tensor for.
struct Converted {
  NBits weights;
  std::vector<std::uint8_t> codes, zeros;
  std::vector<std::byte> scales;
};

struct Pattern {
  const OrtNode *dequantize = nullptr, *product = nullptr;
  bool gemm = false;
};

// None: the product's weights are no result of DequantizeLinear.
std::optional<Pattern> pattern_of(const OrtNode* product) {
  const GraphNode node(product);
  const bool gemm = node.type() == "Gemm";
  if ((!gemm && node.type() != "MatMul") || !node.has_input(1)) return {};
  const OrtNode* const dequantize = node.producer(1);
  if (!dequantize || GraphNode(dequantize).type() != "DequantizeLinear") return {};
  return Pattern{dequantize, product, gemm};
}

// Position in [n][blocks] of a parameter, from its tensor: one number, one for each row, or one for each block.
class Parameters {
 public:
  Parameters(const Tensor& t, std::int64_t n, std::int64_t blocks, bool transposed)
      : one_(t.elements() == 1), n_(n), blocks_(blocks), transposed_(transposed) {}
  std::int64_t at(std::int64_t row, std::int64_t block) const {
    if (one_) return 0;
    return transposed_ ? row * blocks_ + block : block * n_ + row;
  }

 private:
  bool one_;
  std::int64_t n_, blocks_;
  bool transposed_;
};

// With the codes, or without them, which take time to convert.
Converted read(const Pattern& pattern, bool quantizes, bool with_codes) {
  const GraphNode dq(pattern.dequantize), product(pattern.product);
  const std::optional<Tensor> w = dq.constant(0), scales = dq.constant(1), zeros = dq.constant(2);
  if (!w || !scales || (dq.has_input(2) && !zeros)) refuse("weights", "", "are not constant");
  const std::optional<Codes> codes = codes_of(w->type);
  if (!codes) refuse("weights", "", "have a type that no format has");
  if (w->dims.size() != 2) refuse("weights", shape_text(w->dims), "are not a matrix");
  if (dq.is_graph_output(0) || dq.consumers(0) != 1) refuse("dequantized weights", "", "are used by other nodes, too");
  if (const OrtNode* before = product.producer(0); before && GraphNode(before).type() == "DequantizeLinear")
    refuse("A", "", "is dequantized, too; ONNX Runtime fuses both into a product of integers");
  if (pattern.gemm && (product.number("alpha").value_or(1) != 1 || product.number("beta").value_or(1) != 1 ||
                       product.integer("transA").value_or(0) != 0))
    refuse("Gemm", "", "has alpha, beta or transA");

  Converted made;
  NBits& to = made.weights;
  const bool transposed = pattern.gemm && product.integer("transB").value_or(0) != 0;  // w is [n][k]
  to.n = w->dims[transposed ? 0 : 1], to.k = w->dims[transposed ? 1 : 0];
  if (to.n < 1 || to.k < 1) refuse("weights", shape_text(w->dims), "are empty");
  to.bits = codes->bits, to.fp8 = codes->fp8, to.quantizes = quantizes;
  to.type = product.input_type(0);
  if (to.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && to.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
    refuse("A", "", "is neither float nor float16");
  if (scales->type != to.type) refuse("scales", "", "are not of A's type");

  const std::int64_t block = dq.integer("block_size").value_or(0), k_axis = transposed ? 1 : 0;
  std::int64_t axis = dq.integer("axis").value_or(1);
  if (axis < 0) axis += 2;
  to.block = round_up(to.k, 128), to.blocks = 1;
  if (block > 0) {
    if (axis != k_axis) refuse("axis", std::to_string(axis), "has blocks along output features");
    if (block < 32 || (block & (block - 1)) != 0)
      refuse("block_size", std::to_string(block), "is not a power of two from 32, and no format has such blocks");
    to.block = block, to.blocks = (to.k + block - 1) / block;
  } else if (scales->elements() != 1 && (axis == k_axis || scales->elements() != to.n)) {
    refuse("scales", shape_text(scales->dims), "are not one for each output feature");
  }
  if (scales->elements() != 1 && scales->elements() != to.n * to.blocks)
    refuse("scales", shape_text(scales->dims), "do not fit the weights");
  if (zeros && (zeros->type != w->type || zeros->elements() != scales->elements()))
    refuse("zero_points", shape_text(zeros->dims), "do not fit the scales");

  const std::size_t element = to.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ? 4 : 2;
  const Parameters parameters(*scales, to.n, to.blocks, transposed);
  made.scales.resize(static_cast<std::size_t>(to.n * to.blocks) * element);
  const std::int64_t zero_bytes = (to.blocks * to.bits + 7) / 8;
  made.zeros.resize(static_cast<std::size_t>(to.n * zero_bytes));
  for (std::int64_t row = 0; row < to.n; ++row)
    for (std::int64_t b = 0; b < to.blocks; ++b) {
      const std::int64_t at = parameters.at(row, b);
      std::memcpy(made.scales.data() + static_cast<std::size_t>(row * to.blocks + b) * element,
                  static_cast<const std::byte*>(scales->data) + static_cast<std::size_t>(at) * element, element);
      const std::uint32_t zero = zeros ? code_at(*zeros, *codes, at) : static_cast<std::uint32_t>(codes->middle);
      made.zeros[static_cast<std::size_t>(row * zero_bytes + b * to.bits / 8)] |=
          static_cast<std::uint8_t>(zero << b * to.bits % 8);
    }
  to.scales = {to.type, {to.n, to.blocks}, made.scales.data()};
  if (to.fp8 && zeros && std::any_of(made.zeros.begin(), made.zeros.end(), [](std::uint8_t z) { return z % 128 != 0; }))
    refuse("zero_points", "", "of FP8 are not 0");
  if (!to.fp8) to.zeros = Tensor{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, {to.n, zero_bytes}, made.zeros.data()};

  if (pattern.gemm && product.has_input(2)) {
    to.bias = product.constant(2);
    if (!to.bias || to.bias->elements() != to.n || to.bias->dims.back() != to.n || to.bias->type != to.type)
      refuse("C", "", "is not a constant with one number for each output feature");
  }
  if (!with_codes) return made;
  const std::int64_t row_bytes = to.blocks * to.block * to.bits / 8;
  made.codes.resize(static_cast<std::size_t>(to.n * row_bytes));
  constexpr std::int64_t kTile = 64;  // of the transposition: what fits into the first cache
  for (std::int64_t from = 0; from < to.k; from += kTile)
    for (std::int64_t row = 0; row < to.n; ++row)
      for (std::int64_t i = from; i < std::min(from + kTile, to.k); ++i)
        made.codes[static_cast<std::size_t>(row * row_bytes + i * to.bits / 8)] |= static_cast<std::uint8_t>(
            code_at(*w, *codes, transposed ? row * to.k + i : i * to.n + row) << i * to.bits % 8);
  to.codes = {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, {to.n, to.blocks, to.block * to.bits / 8}, made.codes.data()};
  return made;
}

}  // namespace

std::vector<const OrtNode*> take_dequantized(Kernels& kernels, const OrtNode* product, bool quantizes) {
  const std::optional<Pattern> pattern = pattern_of(product);
  if (!pattern) return {};
  const Converted made = read(*pattern, quantizes, false);
  linear_of(kernels, made.weights, storage_of(made.weights));
  return {pattern->dequantize, pattern->product};
}

OrtNodeComputeInfo* compile_dequantized(Kernels& kernels, const OrtGraph* graph, bool quantizes) {
  for (const OrtNode* node : nodes_of(graph))
    if (const std::optional<Pattern> pattern = pattern_of(node)) {
      const Converted made = read(*pattern, quantizes, true);
      return compile(kernels, made.weights, 0);  // all other inputs are constant
    }
  throw Error(ErrorCode::invalid_argument, "fused nodes", "", "have no product of dequantized weights");
}

}  // namespace tilewright::onnxruntime
