// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/operations/nvfp4.h"

#include <cstring>

#include "hosts/onnxruntime/compiled.h"

namespace tilewright::onnxruntime {
namespace {

constexpr std::int64_t kBlock = 16;

struct Pattern {
  const OrtNode *scales = nullptr, *weights = nullptr, *product = nullptr;
  Spec spec;
  std::int64_t n = 0, k = 0;
  bool transposed = false;  // w is [n][k]
  Tensor codes, exponents;
  float global = 1;
  std::optional<Tensor> bias;
};

[[noreturn]] void refuse(const char* field, const std::string& value, const std::string& why) {
  throw Error(ErrorCode::unsupported, field, value, why);
}

const OrtNode* dequantize_before(const OrtNode* node, std::size_t input) {
  const OrtNode* const before = GraphNode(node).producer(input);
  return before && GraphNode(before).type() == "DequantizeLinear" ? before : nullptr;
}

// None: the product's weights are of another kind.
std::optional<Pattern> pattern_of(const OrtNode* product, bool quantizes) {
  const GraphNode node(product);
  const bool gemm = node.type() == "Gemm";
  if ((!gemm && node.type() != "MatMul") || !node.has_input(1)) return {};
  Pattern p;
  p.product = product;
  if (!(p.weights = dequantize_before(product, 1)) || !(p.scales = dequantize_before(p.weights, 1))) return {};
  const GraphNode weights(p.weights), scales(p.scales);
  const std::optional<Tensor> codes = weights.constant(0), exponents = scales.constant(0), global = scales.constant(1);
  if (!codes || codes->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1) return {};
  if (!exponents || !global || exponents->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN ||
      global->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || global->elements() != 1)
    refuse("scales", "", "of FLOAT4E2M1 are not constants of FLOAT8E4M3FN, times one float");
  for (const GraphNode* dequantize : {&weights, &scales})
    if (dequantize->has_input(2) || dequantize->consumers(0) != 1 || dequantize->is_graph_output(0))
      refuse("dequantized weights", "", "have zero points, or are used by other nodes, too");
  if (gemm && (node.number("alpha").value_or(1) != 1 || node.number("beta").value_or(1) != 1 ||
               node.integer("transA").value_or(0) != 0))
    refuse("Gemm", "", "has alpha, beta or transA");
  p.transposed = gemm && node.integer("transB").value_or(0) != 0;
  std::int64_t axis = weights.integer("axis").value_or(1);
  if (axis < 0) axis += 2;
  if (codes->dims.size() != 2 || exponents->dims.size() != 2 || axis != (p.transposed ? 1 : 0) ||
      weights.integer("block_size").value_or(0) != kBlock)
    refuse("weights", shape_text(codes->dims), "are not a matrix in blocks of 16 along the reduction");
  p.n = codes->dims[p.transposed ? 0 : 1], p.k = codes->dims[p.transposed ? 1 : 0];
  if (p.n < 1 || p.k < 1 || p.k % kBlock != 0 || exponents->elements() != p.n * (p.k / kBlock))
    refuse("scales", shape_text(exponents->dims), "do not fit the weights, or K is not a multiple of 16");
  if (node.input_type(0) != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) refuse("A", "", "is not of type float");
  if (gemm && node.has_input(2)) {
    p.bias = node.constant(2);
    if (!p.bias || p.bias->elements() != p.n || p.bias->dims.back() != p.n ||
        p.bias->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
      refuse("C", "", "is not a constant with one number for each output feature");
  }
  p.codes = *codes, p.exponents = *exponents, p.global = *static_cast<const float*>(global->data);
  p.spec = float_spec("f32", "nvfp4", quantizes, p.bias.has_value());
  p.spec.n = round_up(p.n, kPanelRows), p.spec.k = round_up(p.k, 64);
  return p;
}

}  // namespace

std::vector<const OrtNode*> take_nvfp4(Kernels& kernels, const OrtNode* product, bool quantizes) {
  const std::optional<Pattern> p = pattern_of(product, quantizes);
  if (!p) return {};
  kernels.product(p->spec);
  return {p->scales, p->weights, p->product};
}

OrtNodeComputeInfo* compile_nvfp4(Kernels& kernels, const OrtGraph* graph, bool quantizes) {
  for (const OrtNode* node : nodes_of(graph)) {
    const std::optional<Pattern> p = pattern_of(node, quantizes);
    if (!p) continue;
    // The number by which all scales are multiplied is a factor of the launch, so that the format's own is 1.
    static constexpr float kOne = 1;
    Linear linear{.product = kernels.product(p->spec), .n = p->n, .k = p->k, .alpha = p->global};
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(p->spec.n * p->spec.k / 2));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(p->spec.n * p->spec.k / kBlock));
    const auto* const from = static_cast<const std::uint8_t*>(p->codes.data);
    const auto* const exponents = static_cast<const std::uint8_t*>(p->exponents.data);
    for (std::int64_t row = 0; row < p->n; ++row)
      for (std::int64_t i = 0; i < p->k; ++i) {
        const std::int64_t at = p->transposed ? row * p->k + i : i * p->n + row;
        const int code = from[at / 2] >> at % 2 * 4 & 15;
        codes[static_cast<std::size_t>((row * p->spec.k + i) / 2)] |= static_cast<std::uint8_t>(code << i % 2 * 4);
        const std::int64_t block = i / kBlock;
        if (i % kBlock == 0)
          scales[static_cast<std::size_t>(row * (p->spec.k / kBlock) + block)] =
              exponents[p->transposed ? row * (p->k / kBlock) + block : block * p->n + row];
      }
    Bytes packed = allocate(linear.packed_bytes());
    linear.product->pack({.data = codes.data(), .scales = scales.data(), .global = &kOne}, packed.get());
    if (p->bias) {
      linear.bias.resize(static_cast<std::size_t>(p->spec.n) * sizeof(float));
      std::memcpy(linear.bias.data(), p->bias->data, static_cast<std::size_t>(p->n) * sizeof(float));
    }
    return compile(std::move(linear), std::move(packed), 0);  // all other inputs are constant
  }
  return nullptr;
}

}  // namespace tilewright::onnxruntime
