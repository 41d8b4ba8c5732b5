// SPDX-License-Identifier: Apache-2.0
// Convolutions of ggml tensors of floats: CONV_2D, CONV_2D_DW and CONV_3D. A Convolution serves one shape.
#pragma once

#include <tilewright/layer.h>

#include <string>

#include "ggml.h"

namespace tilewright::ggml {

// The text of the problem; empty if no problem describes the operation, e.g. for tensors that are not dense.
std::string convolution_text(const ggml_tensor* op);

class Convolution {
 public:
  // Throws Error if the problem is not valid or no kernel but the reference computes it.
  Convolution(Engine& engine, const Device& device, const std::string& text);

  // Any thread.
  void launch(const ggml_tensor* op) const;

 private:
  Layer layer_;
};

}  // namespace tilewright::ggml
