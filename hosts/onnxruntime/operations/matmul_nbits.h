// SPDX-License-Identifier: Apache-2.0
// The operation com.microsoft.MatMulNBits.
#pragma once

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

// Throws Error, whose text says why the node is left to ONNX Runtime. Prepares its kernels.
void take_matmul_nbits(Kernels& kernels, const Node& node);
// Where a node has the operation's inputs; -1: nowhere.
struct NBitsInputs {
  int x = 0, codes = 1, scales = 2, zeros = 3, groups = 4;
};
OrtKernelImpl* make_matmul_nbits(Kernels& kernels, const Node& node, const NBitsInputs& inputs);
// An OrtKernelCreateFunc. `kernels`: of the factory.
OrtStatus* create_matmul_nbits(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;

}  // namespace tilewright::onnxruntime
