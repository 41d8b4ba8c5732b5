// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/operations/ggml.h"

#include <tilewright/format.h>

#include <cstring>

#include "hosts/onnxruntime/compiled.h"

namespace tilewright::onnxruntime {
namespace {

enum Input : std::size_t { kX, kWeights, kBias, kInputs };

struct Weights {
  Spec spec;
  std::int64_t n = 0, k = 0;
  Tensor bytes;
  std::optional<Tensor> bias;
};

std::int64_t positive(const Node& node, const char* attribute) {
  const std::int64_t value = node.integer(attribute).value_or(0);
  if (value < 1 || value > INT32_MAX - 1024)
    throw Error(ErrorCode::invalid_argument, attribute, std::to_string(value), "must be from 1 to 2^31 - 1025");
  return value;
}

Weights read(const Node& node) {
  Weights w;
  const std::string name = node.text("format").value_or("");
  const Format format = Format::parse(name);
  if (!format.info().gguf) throw Error(ErrorCode::invalid_argument, "format", name, "is not one that GGUF files have");
  w.n = positive(node, "N"), w.k = positive(node, "K");
  if (w.k % format.block() != 0)
    throw Error(ErrorCode::invalid_argument, "K", std::to_string(w.k),
                "must be a multiple of " + std::to_string(format.block()) + " for " + name);
  const std::optional<Tensor> bytes = node.constant(kWeights);
  if (!bytes)
    throw Error(ErrorCode::unsupported, "w", "", "is not constant, so it cannot be packed when the model is loaded");
  if (bytes->elements() != format.total_bytes(w.n, w.k))
    throw Error(
        ErrorCode::invalid_argument, "w", shape_text(bytes->dims),
        "has the wrong number of bytes; " + name + " with N and K has " + std::to_string(format.total_bytes(w.n, w.k)));
  w.bytes = *bytes;
  if (node.has_input(kBias)) {
    w.bias = node.constant(kBias);
    if (!w.bias || w.bias->elements() != w.n)
      throw Error(ErrorCode::invalid_argument, "bias", w.bias ? shape_text(w.bias->dims) : "",
                  "must be a constant with N numbers, " + std::to_string(w.n));
  }
  const std::int64_t level = node.integer("accuracy_level").value_or(4);
  const bool floats = name == "f32" || name == "f16" || name == "bf16";
  w.spec = float_spec("f32", name, level == 4 && !floats, w.bias.has_value());
  w.spec.n = round_up(w.n, kPanelRows), w.spec.k = w.k;
  return w;
}

}  // namespace

const OrtCustomOp& ggml_schema() {
  static const OrtCustomOp schema = [] {
    OrtCustomOp op{};
    op.version = kOrtApi;
    op.GetName = [](const OrtCustomOp*) noexcept { return kGgml; };
    op.GetExecutionProviderType = [](const OrtCustomOp*) noexcept { return kName; };
    op.GetInputTypeCount = [](const OrtCustomOp*) noexcept { return std::size_t{kInputs}; };
    op.GetInputType = [](const OrtCustomOp*, std::size_t input) noexcept {
      return input == kWeights ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    };
    op.GetInputCharacteristic = [](const OrtCustomOp*, std::size_t input) noexcept {
      return input == kBias ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
    };
    op.GetInputMemoryType = [](const OrtCustomOp*, std::size_t) noexcept { return OrtMemTypeDefault; };
    op.GetOutputTypeCount = [](const OrtCustomOp*) noexcept { return std::size_t{1}; };
    op.GetOutputType = [](const OrtCustomOp*, std::size_t) noexcept { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
    op.GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) noexcept { return INPUT_OUTPUT_REQUIRED; };
    const auto zero = [](const OrtCustomOp*) noexcept { return 0; };
    op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = zero;
    op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = zero;
    op.GetStartVersion = [](const OrtCustomOp*) noexcept { return 1; };
    op.GetEndVersion = [](const OrtCustomOp*) noexcept { return INT32_MAX; };
    op.GetMayInplace = op.GetAliasMap = [](int**, int**) noexcept { return std::size_t{0}; };
    op.ReleaseMayInplace = op.ReleaseAliasMap = [](int*, int*) noexcept {};
    op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo* info, void**) noexcept {
      return guarded([&] {  // a node that was not compiled: say why
        read(KernelNode(info));
        throw Error(ErrorCode::unsupported, "tilewright.MatMul", KernelNode(info).name(), "has no kernel on this CPU");
      });
    };
    op.KernelComputeV2 = [](void*, OrtKernelContext*) noexcept -> OrtStatus* { return nullptr; };
    op.KernelDestroy = [](void*) noexcept {};
    return op;
  }();
  return schema;
}

OrtNodeComputeInfo* compile_ggml(Kernels& kernels, const Node& node, std::size_t input) {
  const Weights w = read(node);
  Linear linear{.product = kernels.product(w.spec), .n = w.n, .k = w.k};
  if (w.bias) {
    linear.bias.resize(static_cast<std::size_t>(w.spec.n) * sizeof(float));
    std::memcpy(linear.bias.data(), w.bias->data, static_cast<std::size_t>(w.n) * sizeof(float));
  }
  const Format format = Format::parse(w.spec.w);
  std::vector<std::byte> padded;
  if (w.spec.n != w.n) {
    padded.resize(static_cast<std::size_t>(format.total_bytes(w.spec.n, w.k)));
    std::memcpy(padded.data(), w.bytes.data, static_cast<std::size_t>(format.total_bytes(w.n, w.k)));
  }
  Bytes packed = allocate(linear.packed_bytes());
  linear.product->pack({.data = padded.empty() ? w.bytes.data : padded.data()}, packed.get());
  return compile(std::move(linear), std::move(packed), input);
}

}  // namespace tilewright::onnxruntime
