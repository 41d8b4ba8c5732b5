// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/ep.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "hosts/onnxruntime/compiled.h"
#include "hosts/onnxruntime/context.h"
#include "hosts/onnxruntime/operations/dequantized.h"
#include "hosts/onnxruntime/operations/ggml.h"
#include "hosts/onnxruntime/operations/integers.h"
#include "hosts/onnxruntime/operations/matmul_nbits.h"
#include "hosts/onnxruntime/operations/nvfp4.h"

namespace tilewright::onnxruntime {
namespace {

using Elements = std::vector<ONNXTensorElementDataType>;
const Elements kFloats = {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16};
const Elements kBytes = {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8};

// The name, in the provider's options, of products by dequantized weights.
constexpr const char* kDequantize = "DequantizeLinear";

constexpr const char* kContext = "EPContext";

template <class Body>
void for_each_name(std::string_view names, const Body& body) {
  for (std::size_t end; !names.empty(); names.remove_prefix(std::min(names.size(), end + 1))) {
    end = std::min(names.find(','), names.size());
    body(names.substr(0, end));
  }
}

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
  void (*take)(Kernels&, const Node&);  // null: no other provider has it, so that what is wrong ends the session
  OrtKernelCreateFunc create;
};

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"com.microsoft", "MatMulNBits", 1, 1, {{"T1", kFloats}}, take_matmul_nbits, create_matmul_nbits},
      {"com.microsoft", kContext, 1, 1, {}, nullptr, create_context},
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
  const std::string type = GraphNode(node).type(), domain = GraphNode(node).domain();
  for (const Operation& op : operations())
    if (type == op.name && domain == op.domain) return &op;
  return nullptr;
}

bool is_ggml(const OrtNode* node) { return GraphNode(node).type() == kGgml && GraphNode(node).domain() == kDomain; }

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

Settings::Settings(const OrtSessionOptions* options)
    : operations(session_entry(options, "ep.tilewrightexecutionprovider.operations")),
      context(session_entry(options, "ep.context_enable") == "1"),
      trusts(session_entry(options, "ep.tilewrightexecutionprovider.trust_context") == "1"),
      quantizes(session_entry(options, "session.qdq_matmulnbits_accuracy_level") == "4") {
  if (!operations || *operations == "all") return;
  std::string known = kDequantize;
  for (const Operation& op : onnxruntime::operations())
    if (op.take) known += std::string(", ") + op.name;
  for_each_name(*operations, [&](std::string_view name) {
    if ((", " + known + ", ").find(", " + std::string(name) + ", ") == std::string::npos)
      throw Error(ErrorCode::invalid_argument, "operations", std::string(name),
                  "is not an operation of this provider; use all, or some of " + known);
  });
}

ExecutionProvider::ExecutionProvider(Kernels& kernels, const OrtKernelRegistry* registry, const Settings& settings,
                                     const OrtLogger* logger)
    : OrtEp{}, kernels_(&kernels), registry_(registry), settings_(settings), logger_(logger) {
  ort_version_supported = kOrtApi;
  GetName = [](const OrtEp*) noexcept { return kName; };
  GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept {
    return guarded([&] { static_cast<ExecutionProvider*>(self)->claim(graph, support); });
  };
  GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** registry) noexcept -> OrtStatus* {
    *registry = static_cast<ExecutionProvider*>(self)->registry_;
    return nullptr;
  };
  Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused, std::size_t count,
               OrtNodeComputeInfo** made, OrtNode** contexts) noexcept {
    return guarded([&] {
      std::fill_n(made, count, nullptr);
      for (std::size_t i = 0; i < count; ++i)
        static_cast<ExecutionProvider*>(self)->compile(graphs[i], fused[i], &made[i],
                                                       contexts ? &contexts[i] : nullptr);
    });
  };
  ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) release(infos[i]);
  };
}

bool ExecutionProvider::wants(const std::string& operation) const {
  if (!settings_.operations) return !kernels_->slower(operation);
  bool named = *settings_.operations == "all" || operation == kContext;
  for_each_name(*settings_.operations, [&](std::string_view name) { named |= name == operation; });
  return named;
}

void ExecutionProvider::claim(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
  for (const OrtNode* node : nodes_of(graph)) use_compiled(node);
  for (const OrtNode* node : nodes_of(graph)) try {
      claim(node, support);
    } catch (const Error& e) {
      log(logger_, ORT_LOGGING_LEVEL_INFO,
          "tilewright: node '" + GraphNode(node).name() + "' of " + GraphNode(node).type() +
              " is left to ONNX Runtime: " + e.what());
    }
}

// Kernels that a model brings are code. A model whose kernels are not used works: they are compiled again.
void ExecutionProvider::use_compiled(const OrtNode* node) {
  const GraphNode view(node);
  if (view.type() != kContext || !is_context(view)) return;
  const std::optional<std::string> compiled = view.text("ep_cache_context");
  if (!compiled || compiled->empty()) return;
  try {
    if (settings_.trusts) return kernels_->use(kernels_in(*compiled));
    log(logger_, ORT_LOGGING_LEVEL_WARNING,
        "tilewright: the kernels in this model are not used, since they are code that would run in this process, and "
        "are "
        "compiled again; if you trust the model, set the provider's option trust_context to 1");
  } catch (const std::exception& e) {
    log(logger_, ORT_LOGGING_LEVEL_WARNING,
        std::string("tilewright: the kernels in this model cannot be used and are compiled again: ") + e.what());
  }
}

void ExecutionProvider::claim(const OrtNode* node, OrtEpGraphSupportInfo* support) {
  if (const Operation* op = operation_of(node)) {
    const OrtKernelDef* kernel = nullptr;  // null: another type, or another provider has the node
    check(g_ep_api->EpGraphSupportInfo_LookUpKernel(support, node, &kernel));
    if (!kernel || (op->create == create_context && !is_context(GraphNode(node)))) return;
    if (!wants(op->name))
      throw Error(ErrorCode::unsupported, "operations", "",
                  "leaves it out: ONNX Runtime is faster on this CPU, or the option names others");
    if (op->take) op->take(*kernels_, GraphNode(node));
    if (!settings_.context) return check(g_ep_api->EpGraphSupportInfo_AddSingleNode(support, node));
    const OrtNodeFusionOptions options{kOrtApi, false};  // the model that is written has the weights
    if (op->take == take_matmul_nbits) check(g_ep_api->EpGraphSupportInfo_AddNodesToFuse(support, &node, 1, &options));
    return;
  }
  const OrtNodeFusionOptions options{kOrtApi, true};
  if (is_ggml(node)) return check(g_ep_api->EpGraphSupportInfo_AddNodesToFuse(support, &node, 1, &options));
  if (!wants(kDequantize) || settings_.context) return;
  std::vector<const OrtNode*> fused = take_nvfp4(*kernels_, node, settings_.quantizes);
  if (fused.empty()) fused = take_dequantized(*kernels_, node, settings_.quantizes);
  if (!fused.empty()) check(g_ep_api->EpGraphSupportInfo_AddNodesToFuse(support, fused.data(), fused.size(), &options));
}

void ExecutionProvider::compile(const OrtGraph* graph, const OrtNode* fused, OrtNodeComputeInfo** made,
                                OrtNode** context) {
  if (const OrtNode* const first = nodes_of(graph).at(0); is_ggml(first)) {
    if (settings_.context)
      throw Error(ErrorCode::unsupported, "tilewright.MatMul", GraphNode(first).name(),
                  "cannot be in an EPContext model; use the model as it is");
    *made = compile_ggml(*kernels_, GraphNode(first), position_in(fused, first, 0));
    return;
  }
  if (!settings_.context) {
    *made = compile_nvfp4(*kernels_, graph, settings_.quantizes);
    if (!*made) *made = compile_dequantized(*kernels_, graph, settings_.quantizes);
    return;
  }
  const OrtNode* const node = nodes_of(graph).at(0);
  const NBits weights = read_nbits(GraphNode(node));
  *made = onnxruntime::compile(*kernels_, weights, position_in(fused, node, 0));
  if (!context) return;
  const Linear linear = linear_of(*kernels_, weights, storage_of(weights));
  std::vector<Spec> specs = {linear.product->spec()};
  if (linear.offsets) specs.push_back(linear.offsets->spec());
  const bool first = written_.insert(specs).second;  // the node of the first product of a shape has its kernels
  const std::string compiled = first ? kernels_->compiled_for(specs) : "";
  *context = make_context_node(fused, node, first ? &compiled : nullptr);
}

}  // namespace tilewright::onnxruntime
