// SPDX-License-Identifier: Apache-2.0
// The execution provider of one session.
#pragma once

#include <set>
#include <vector>

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

// What a session asks for.
struct Settings {
  // Provider option `operations`: "all", or the names of the operations to compute, separated by commas. Unset: all
  // but those that ONNX Runtime computes faster on this CPU.
  std::optional<std::string> operations;
  bool context = false;    // the session writes an EPContext model
  bool trusts = false;     // provider option `trust_context`: the kernels in an EPContext model are used
  bool quantizes = false;  // the x of products by dequantized weights; ONNX Runtime has an option for it

  explicit Settings(const OrtSessionOptions* options);
};

class ExecutionProvider : public OrtEp {
 public:
  // `registry`: of the kernels, which the factory owns.
  ExecutionProvider(Kernels& kernels, const OrtKernelRegistry* registry, const Settings& settings,
                    const OrtLogger* logger);

 private:
  // Claims the nodes of the graph that our kernels compute.
  void claim(const OrtGraph* graph, OrtEpGraphSupportInfo* support);
  void claim(const OrtNode* node, OrtEpGraphSupportInfo* support);
  void use_compiled(const OrtNode* node);
  void compile(const OrtGraph* graph, const OrtNode* fused, OrtNodeComputeInfo** made, OrtNode** context);
  bool wants(const std::string& operation) const;

  Kernels* kernels_;
  const OrtKernelRegistry* registry_;
  Settings settings_;
  std::set<std::vector<Spec>> written_;  // whose kernels are in the EPContext model
  const OrtLogger* logger_;
};

// Throws Error.
OrtKernelRegistry* make_registry(Kernels& kernels);

}  // namespace tilewright::onnxruntime
