// SPDX-License-Identifier: Apache-2.0
// A product by constant weights that stands for several nodes, or for one in a model that is compiled ahead of time.
#pragma once

#include "hosts/onnxruntime/kernels.h"
#include "hosts/onnxruntime/operations/nbits.h"

namespace tilewright::onnxruntime {

// `input`: of x, among those of the node. `packed`: the weights.
OrtNodeComputeInfo* compile(Linear linear, Bytes packed, std::size_t input);
// The weights are packed here, so that the model's own may be freed.
OrtNodeComputeInfo* compile(Kernels& kernels, const NBits& weights, std::size_t input);
void release(OrtNodeComputeInfo* info) noexcept;

}  // namespace tilewright::onnxruntime
