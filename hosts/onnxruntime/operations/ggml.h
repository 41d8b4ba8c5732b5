// SPDX-License-Identifier: Apache-2.0
// The operation MatMul of domain `tilewright`: y[.., N] = x[.., K] * w[N][K] + bias[N], where w are bytes of a tensor
// in a GGUF file. x, y and the optional bias are floats. Attributes: `format` (as docs/reference/formats.md names it),
// N, K and accuracy_level, which is 4 if x may be quantized to 8 bits (the default), and else 0.
#pragma once

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {

inline constexpr const char* kDomain = "tilewright";
inline constexpr const char* kGgml = "MatMul";

// With which ONNX Runtime checks models; the operation itself is compiled.
const OrtCustomOp& ggml_schema();

// Throws Error. `input`: of x, among those of the compiled node.
OrtNodeComputeInfo* compile_ggml(Kernels& kernels, const Node& node, std::size_t input);

}  // namespace tilewright::onnxruntime
