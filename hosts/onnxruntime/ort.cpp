// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/ort.h"

#include <functional>
#include <new>
#include <numeric>

namespace tilewright::onnxruntime {
namespace {

ONNXTensorElementDataType element_type_of(const OrtTypeInfo* type) {
  const OrtTensorTypeAndShapeInfo* info = nullptr;  // of `type`; null: no tensor
  check(g_api->CastTypeInfoToTensorInfo(type, &info));
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  if (info) check(g_api->GetTensorElementType(info, &element));
  return element;
}

std::optional<std::vector<std::int64_t>> shape_of(const OrtTypeInfo* type) {
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  check(g_api->CastTypeInfoToTensorInfo(type, &info));
  if (!info || !g_api->TensorTypeAndShape_HasShape(info)) return {};
  std::size_t rank = 0;
  check(g_api->GetDimensionsCount(info, &rank));
  std::vector<std::int64_t> dims(rank);
  check(g_api->GetDimensions(info, dims.data(), rank));
  return dims;
}

template <class Value>
std::optional<Value> attribute_of(const OrtNode* node, const char* name, OrtOpAttrType type) {
  const OrtOpAttr* found = nullptr;
  if (!succeeded(g_api->Node_GetAttributeByName(node, name, &found)) || !found) return {};
  Value value{};
  std::size_t bytes = 0;
  check(g_api->ReadOpAttr(found, type, &value, sizeof value, &bytes));
  return value;
}

std::vector<const OrtValueInfo*> output_values(const OrtNode* node) {
  std::size_t count = 0;
  check(g_api->Node_GetNumOutputs(node, &count));
  std::vector<const OrtValueInfo*> outputs(count);
  check(g_api->Node_GetOutputs(node, outputs.data(), count));
  return outputs;
}

std::vector<std::string> names_of(const std::vector<const OrtValueInfo*>& values) {
  std::vector<std::string> names;
  for (const OrtValueInfo* value : values) {
    const char* name = "";
    if (value) check(g_api->GetValueInfoName(value, &name));
    names.push_back(name);
  }
  return names;
}

using Type = std::unique_ptr<OrtTypeInfo, void (*)(OrtTypeInfo*)>;
Type type_of(const OrtKernelInfo* info, std::size_t input) {
  OrtTypeInfo* type = nullptr;
  check(g_api->KernelInfo_GetInputTypeInfo(info, input, &type));
  return {type, [](OrtTypeInfo* t) { g_api->ReleaseTypeInfo(t); }};
}

}  // namespace

void check(OrtStatus* status) {
  if (!status) return;
  const std::string text = g_api->GetErrorMessage(status);
  g_api->ReleaseStatus(status);
  throw Error(ErrorCode::driver_failed, "ONNX Runtime", "", "failed: " + text);
}

bool succeeded(OrtStatus* status) {
  if (!status) return true;
  g_api->ReleaseStatus(status);
  return false;
}

OrtStatus* status_of_exception() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    const OrtErrorCode code = e.code() == ErrorCode::invalid_argument ? ORT_INVALID_ARGUMENT
                              : e.code() == ErrorCode::unsupported    ? ORT_NOT_IMPLEMENTED
                                                                      : ORT_EP_FAIL;
    return g_api->CreateStatus(code, e.what());
  } catch (const std::bad_alloc&) {
    return g_api->CreateStatus(ORT_EP_FAIL, "Tilewright needs more memory than the system gives");
  } catch (const std::exception& e) {
    return g_api->CreateStatus(ORT_EP_FAIL, e.what());
  } catch (...) {
    return g_api->CreateStatus(ORT_FAIL, "Tilewright failed for an unknown reason");
  }
}

std::int64_t Tensor::elements() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t Tensor::rows() const {
  return dims.empty() ? 1 : std::accumulate(dims.begin(), dims.end() - 1, std::int64_t{1}, std::multiplies<>());
}

Tensor tensor_of(const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* made = nullptr;
  check(g_api->GetTensorTypeAndShape(value, &made));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> info(
      made, [](OrtTensorTypeAndShapeInfo* i) { g_api->ReleaseTensorTypeAndShapeInfo(i); });
  Tensor tensor;
  std::size_t rank = 0;
  check(g_api->GetTensorElementType(info.get(), &tensor.type));
  check(g_api->GetDimensionsCount(info.get(), &rank));
  tensor.dims.resize(rank);
  check(g_api->GetDimensions(info.get(), tensor.dims.data(), rank));
  void* data = nullptr;
  check(g_api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  tensor.data = data;
  return tensor;
}

void must_have_columns(const char* name, const Tensor& tensor, std::int64_t columns) {
  if (tensor.dims.empty() || tensor.dims.back() != columns)
    throw Error(ErrorCode::invalid_argument, name, shape_text(tensor.dims),
                "does not fit: its last dimension must be K, " + std::to_string(columns));
}

std::string shape_text(const std::vector<std::int64_t>& dims) {
  std::string text = "[";
  for (const std::int64_t d : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(d);
  return text + "]";
}

const char* float_format(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return "f32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return "f16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return "bf16";
    default: return nullptr;
  }
}

GraphNode::GraphNode(const OrtNode* node) : node_(node) {
  std::size_t count = 0;
  check(g_api->Node_GetNumInputs(node, &count));
  inputs_.resize(count);
  check(g_api->Node_GetInputs(node, inputs_.data(), count));
}

std::string GraphNode::name() const {
  const char* name = nullptr;
  check(g_api->Node_GetName(node_, &name));
  return name;
}

std::string GraphNode::type() const {
  const char* type = nullptr;
  check(g_api->Node_GetOperatorType(node_, &type));
  return type;
}

std::string GraphNode::domain() const {
  const char* domain = nullptr;
  check(g_api->Node_GetDomain(node_, &domain));
  return domain;
}

const OrtNode* GraphNode::producer(std::size_t input) const {
  const OrtNode* producer = nullptr;
  std::size_t output = 0;
  if (has_input(input)) check(g_api->ValueInfo_GetValueProducer(inputs_[input], &producer, &output));
  return producer;
}

bool GraphNode::is_graph_output(std::size_t output) const {
  bool is_output = false;
  check(g_api->ValueInfo_IsGraphOutput(output_values(node_).at(output), &is_output));
  return is_output;
}

std::size_t GraphNode::consumers(std::size_t output) const {
  std::size_t count = 0;
  check(g_api->ValueInfo_GetValueNumConsumers(output_values(node_).at(output), &count));
  return count;
}

std::optional<std::int64_t> GraphNode::integer(const char* attribute) const {
  return attribute_of<std::int64_t>(node_, attribute, ORT_OP_ATTR_INT);
}

std::optional<float> GraphNode::number(const char* attribute) const {
  return attribute_of<float>(node_, attribute, ORT_OP_ATTR_FLOAT);
}

std::optional<std::string> GraphNode::text(const char* attribute) const {
  const OrtOpAttr* found = nullptr;
  if (!succeeded(g_api->Node_GetAttributeByName(node_, attribute, &found)) || !found) return {};
  std::size_t bytes = 0;
  if (succeeded(g_api->ReadOpAttr(found, ORT_OP_ATTR_STRING, nullptr, 0, &bytes)) || bytes == 0) return std::string();
  std::string value(bytes, '\0');
  check(g_api->ReadOpAttr(found, ORT_OP_ATTR_STRING, value.data(), bytes, &bytes));
  if (value.back() == '\0') value.pop_back();  // which some versions of ONNX Runtime append
  return value;
}

std::vector<std::string> GraphNode::input_names() const { return names_of(inputs_); }
std::vector<std::string> GraphNode::output_names() const { return names_of(output_values(node_)); }

bool GraphNode::has_input(std::size_t index) const { return index < inputs_.size() && inputs_[index]; }

ONNXTensorElementDataType GraphNode::input_type(std::size_t index) const {
  const OrtTypeInfo* type = nullptr;  // of the value
  check(g_api->GetValueInfoTypeInfo(inputs_[index], &type));
  return element_type_of(type);
}

std::optional<std::vector<std::int64_t>> GraphNode::input_shape(std::size_t index) const {
  const OrtTypeInfo* type = nullptr;
  check(g_api->GetValueInfoTypeInfo(inputs_[index], &type));
  return shape_of(type);
}

std::optional<Tensor> GraphNode::constant(std::size_t index) const {
  bool is_constant = false;
  if (has_input(index)) check(g_api->ValueInfo_IsConstantInitializer(inputs_[index], &is_constant));
  const OrtValue* value = nullptr;
  if (is_constant) check(g_api->ValueInfo_GetInitializerValue(inputs_[index], &value));
  if (!value) return {};
  return tensor_of(value);
}

std::string KernelNode::name() const {
  std::size_t size = 0;
  check(g_api->KernelInfo_GetNodeName(info_, nullptr, &size));
  std::string name(size, '\0');
  check(g_api->KernelInfo_GetNodeName(info_, name.data(), &size));
  name.resize(size ? size - 1 : 0);
  return name;
}

std::optional<std::int64_t> KernelNode::integer(const char* attribute) const {
  std::int64_t value = 0;
  if (!succeeded(g_api->KernelInfoGetAttribute_int64(info_, attribute, &value))) return {};
  return value;
}

std::optional<std::string> KernelNode::text(const char* attribute) const {
  std::size_t size = 0;
  if (!succeeded(g_api->KernelInfoGetAttribute_string(info_, attribute, nullptr, &size))) return {};
  std::string value(size, '\0');
  check(g_api->KernelInfoGetAttribute_string(info_, attribute, value.data(), &size));
  value.resize(size ? size - 1 : 0);
  return value;
}

bool KernelNode::has_input(std::size_t index) const {
  std::size_t count = 0, size = 0;
  check(g_api->KernelInfo_GetInputCount(info_, &count));
  if (index >= count) return false;
  check(g_api->KernelInfo_GetInputName(info_, index, nullptr, &size));
  return size > 1;  // with the zero at its end
}

ONNXTensorElementDataType KernelNode::input_type(std::size_t index) const {
  return element_type_of(type_of(info_, index).get());
}

std::optional<std::vector<std::int64_t>> KernelNode::input_shape(std::size_t index) const {
  return shape_of(type_of(info_, index).get());
}

std::optional<Tensor> KernelNode::constant(std::size_t index) const {
  if (!has_input(index)) return {};
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(g_api->KernelInfoGetConstantInput_tensor(info_, index, &is_constant, &value));
  if (!is_constant || !value) return {};
  return tensor_of(value);
}

std::vector<const OrtNode*> nodes_of(const OrtGraph* graph) {
  std::size_t count = 0;
  check(g_api->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  check(g_api->Graph_GetNodes(graph, nodes.data(), count));
  return nodes;
}

std::optional<std::string> session_entry(const OrtSessionOptions* options, const char* key) {
  int has = 0;
  check(g_api->HasSessionConfigEntry(options, key, &has));
  if (!has) return {};
  std::size_t size = 0;
  check(g_api->GetSessionConfigEntry(options, key, nullptr, &size));
  std::string value(size, '\0');
  check(g_api->GetSessionConfigEntry(options, key, value.data(), &size));
  value.resize(size ? size - 1 : 0);
  return value;
}

const OrtValue* input_of(const OrtKernelContext* context, std::size_t index) {
  const OrtValue* value = nullptr;
  check(g_api->KernelContext_GetInput(context, index, &value));
  return value;
}

void* output_of(OrtKernelContext* context, std::size_t index, const std::vector<std::int64_t>& dims) {
  OrtValue* value = nullptr;
  check(g_api->KernelContext_GetOutput(context, index, dims.data(), dims.size(), &value));
  void* data = nullptr;
  check(g_api->GetTensorMutableData(value, &data));
  return data;
}

}  // namespace tilewright::onnxruntime
