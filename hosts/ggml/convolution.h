// SPDX-License-Identifier: Apache-2.0
// Convolutions of ggml tensors of floats: CONV_2D, CONV_2D_DW and CONV_3D. A Convolution serves one shape.
#pragma once

#include <tilewright/layer.h>

#include <cstdint>
#include <string>

#include "ggml.h"

namespace tilewright::ggml {

// Whether kernels read an input as it lies. Of other inputs they take a dense copy.
bool lies_in_order(const ggml_tensor* t);

// Of x.
std::int64_t channels_of(const ggml_tensor* op);

// The text of the problem with such an x; empty if no problem describes the operation.
std::string convolution_text(const ggml_tensor* op, ggml_type x);

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
