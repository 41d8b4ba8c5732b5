// SPDX-License-Identifier: Apache-2.0
// DequantizeLinear of constant weights and the MatMul or Gemm that multiplies by them, as one node.
#pragma once

#include <vector>

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

// `product`: a MatMul or Gemm. The nodes that become one, the product last; none if its weights are not dequantized.
// Throws Error, whose text says why they are left to ONNX Runtime. Prepares the kernels.
// quantizes: x to 8 bits, in blocks of 32.
std::vector<const OrtNode*> take_dequantized(Kernels& kernels, const OrtNode* product, bool quantizes);

// Of a graph of such nodes, whose weights are packed here and may be freed then. release() ends it.
OrtNodeComputeInfo* compile_dequantized(Kernels& kernels, const OrtGraph* graph, bool quantizes);

}  // namespace tilewright::onnxruntime
