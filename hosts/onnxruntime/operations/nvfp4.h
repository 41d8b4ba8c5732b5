// SPDX-License-Identifier: Apache-2.0
// Products by NVFP4 weights as Model Optimizer exports them: FLOAT4E2M1 in blocks of 16 along the reduction,
// dequantized by scales that are FLOAT8E4M3FN, dequantized by one number. ONNX Runtime has no kernels for these on
// CPUs.
#pragma once

#include <vector>

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

// As take_dequantized() and compile_dequantized(), which see dequantized.h.
std::vector<const OrtNode*> take_nvfp4(Kernels& kernels, const OrtNode* product, bool quantizes);
OrtNodeComputeInfo* compile_nvfp4(Kernels& kernels, const OrtGraph* graph, bool quantizes);  // null: no such nodes

}  // namespace tilewright::onnxruntime
