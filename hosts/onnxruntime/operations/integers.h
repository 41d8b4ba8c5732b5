// SPDX-License-Identifier: Apache-2.0
// The operations MatMulInteger and QLinearMatMul with constant weights: exact sums of 8-bit integers.
#pragma once

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

// As take_matmul_nbits() and create_matmul_nbits().
void take_matmul_integer(Kernels& kernels, const Node& node);
OrtStatus* create_matmul_integer(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;
void take_qlinear_matmul(Kernels& kernels, const Node& node);
OrtStatus* create_qlinear_matmul(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;

}  // namespace tilewright::onnxruntime
