// SPDX-License-Identifier: Apache-2.0
// The execution provider of one session.
#pragma once

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

class ExecutionProvider : public OrtEp {
 public:
  // `registry`: of the kernels, which the factory owns.
  ExecutionProvider(Kernels& kernels, const OrtKernelRegistry* registry, const OrtLogger* logger);

 private:
  // Claims the nodes of the graph that our kernels compute.
  void claim(const OrtGraph* graph, OrtEpGraphSupportInfo* support);

  Kernels* kernels_;
  const OrtKernelRegistry* registry_;
  const OrtLogger* logger_;
};

// Throws Error.
OrtKernelRegistry* make_registry(Kernels& kernels);

}  // namespace tilewright::onnxruntime
