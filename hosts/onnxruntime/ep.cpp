// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/ep.h"

#include <memory>
#include <string_view>
#include <vector>

#include "hosts/onnxruntime/integers.h"
#include "hosts/onnxruntime/matmul_nbits.h"

namespace tilewright::onnxruntime {
namespace {

using Elements = std::vector<ONNXTensorElementDataType>;
const Elements kFloats = {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16};
const Elements kBytes = {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8};

constexpr int kNoEnd = 1 << 20;

// An operation that has kernels.
struct Operation {
  const char *domain, *name;
  int since, until;  // versions of the operation
  struct Constraint {
    const char* type;
    const Elements& allowed;
  };
  std::vector<Constraint> constraints;
  void (*take)(Kernels&, const Node&);
  OrtKernelCreateFunc create;
};

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"com.microsoft", "MatMulNBits", 1, 1, {{"T1", kFloats}}, take_matmul_nbits, create_matmul_nbits},
      {"", "MatMulInteger", 10, kNoEnd, {{"T1", kBytes}, {"T2", kBytes}}, take_matmul_integer, create_matmul_integer},
      {"",
       "QLinearMatMul",
       10,
       kNoEnd,
       {{"T1", kBytes}, {"T2", kBytes}, {"T3", kBytes}},
       take_qlinear_matmul,
       create_qlinear_matmul},
  };
  return all;
}

void add(OrtKernelRegistry* registry, const Operation& op, Kernels& kernels) {
  OrtKernelDefBuilder* made = nullptr;
  check(g_ep_api->CreateKernelDefBuilder(&made));
  const std::unique_ptr<OrtKernelDefBuilder, void (*)(OrtKernelDefBuilder*)> builder(
      made, [](OrtKernelDefBuilder* b) { g_ep_api->ReleaseKernelDefBuilder(b); });
  check(g_ep_api->KernelDefBuilder_SetOperatorType(made, op.name));
  check(g_ep_api->KernelDefBuilder_SetDomain(made, op.domain));
  check(g_ep_api->KernelDefBuilder_SetSinceVersion(made, op.since, op.until));
  check(g_ep_api->KernelDefBuilder_SetExecutionProvider(made, kName));
  for (const Operation::Constraint& c : op.constraints) {
    std::vector<const OrtDataType*> types;
    for (const ONNXTensorElementDataType type : c.allowed)
      check(g_ep_api->GetTensorDataType(type, &types.emplace_back()));
    check(g_ep_api->KernelDefBuilder_AddTypeConstraint(made, c.type, types.data(), types.size()));
  }
  OrtKernelDef* built = nullptr;
  check(g_ep_api->KernelDefBuilder_Build(made, &built));
  const std::unique_ptr<OrtKernelDef, void (*)(OrtKernelDef*)> definition(
      built, [](OrtKernelDef* d) { g_ep_api->ReleaseKernelDef(d); });
  check(g_ep_api->KernelRegistry_AddKernel(registry, built, op.create, &kernels));
}

const Operation* operation_of(const OrtNode* node) {
  const char *type = nullptr, *domain = nullptr;
  check(g_api->Node_GetOperatorType(node, &type));
  check(g_api->Node_GetDomain(node, &domain));
  for (const Operation& op : operations())
    if (std::string_view(type) == op.name && std::string_view(domain) == op.domain) return &op;
  return nullptr;
}

}  // namespace

OrtKernelRegistry* make_registry(Kernels& kernels) {
  OrtKernelRegistry* made = nullptr;
  check(g_ep_api->CreateKernelRegistry(&made));
  try {
    for (const Operation& op : operations()) add(made, op, kernels);
  } catch (...) {
    g_ep_api->ReleaseKernelRegistry(made);
    throw;
  }
  return made;
}

ExecutionProvider::ExecutionProvider(Kernels& kernels, const OrtKernelRegistry* registry, const OrtLogger* logger)
    : OrtEp{}, kernels_(&kernels), registry_(registry), logger_(logger) {
  ort_version_supported = kOrtApi;
  GetName = [](const OrtEp*) noexcept { return kName; };
  GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept {
    return guarded([&] { static_cast<ExecutionProvider*>(self)->claim(graph, support); });
  };
  GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** registry) noexcept -> OrtStatus* {
    *registry = static_cast<ExecutionProvider*>(self)->registry_;
    return nullptr;
  };
}

void ExecutionProvider::claim(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
  std::size_t count = 0;
  check(g_api->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  check(g_api->Graph_GetNodes(graph, nodes.data(), count));
  for (const OrtNode* node : nodes) {
    const Operation* op = operation_of(node);
    if (!op) continue;
    try {
      const OrtKernelDef* kernel = nullptr;  // null: another type, or another EP has the node
      check(g_ep_api->EpGraphSupportInfo_LookUpKernel(support, node, &kernel));
      if (!kernel) continue;
      op->take(*kernels_, GraphNode(node));
    } catch (const Error& e) {
      log(logger_, ORT_LOGGING_LEVEL_INFO,
          "tilewright: node '" + GraphNode(node).name() + "' of " + op->name + " is left to ONNX Runtime: " + e.what());
      continue;
    }
    check(g_ep_api->EpGraphSupportInfo_AddSingleNode(support, node));
  }
}

}  // namespace tilewright::onnxruntime
