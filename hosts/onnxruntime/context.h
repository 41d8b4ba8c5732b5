// SPDX-License-Identifier: Apache-2.0
// Models that are compiled ahead of time, ONNX Runtime's EPContext models: each MatMulNBits becomes a node EPContext
// with the same inputs, weights included. Its `notes` say what it computes, and `ep_cache_context` of the first one has
// the kernels of all.
#pragma once

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

// `fused`: the node that stands for `node`, a MatMulNBits, in the model that is written. `compiled`: of
// Kernels::compiled_for(); null: another node has them.
OrtNode* make_context_node(const OrtNode* fused, const OrtNode* node, const std::string* compiled);
// Where a fused node has the input of `node` with this index.
std::size_t position_in(const OrtNode* fused, const OrtNode* node, std::size_t input);

// What make_context_node() was given, from the attribute. Throws Error (invalid_argument).
std::string kernels_in(const std::string& ep_cache_context);

// Whether the node, an EPContext, is one of ours.
bool is_context(const Node& node);
// As create_matmul_nbits(), of such a node.
OrtStatus* create_context(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;

}  // namespace tilewright::onnxruntime
