// SPDX-License-Identifier: Apache-2.0
// The operation com.microsoft.MatMulNBits.
#pragma once

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

// Throws Error, whose text says why the node is left to ONNX Runtime. Prepares its kernels.
void take_matmul_nbits(Kernels& kernels, const Node& node);
// An OrtKernelCreateFunc. `kernels`: of the factory.
OrtStatus* create_matmul_nbits(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;

}  // namespace tilewright::onnxruntime
