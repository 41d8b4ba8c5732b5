// SPDX-License-Identifier: Apache-2.0
// Pointwise convolutions by a kernel of gemm: x, w and y already lie as its matrices, with a row for each pixel.
#pragma once
#include "operations/conv/cuda/product.cuh"

namespace tw::conv {

// Kernel: a gemm kernel, tw::gemm::WgmmaKernel<...> for one.
template <class Kernel>
struct Pointwise {
  TW_CONSTANTS(int, kThreads = Kernel::kThreads, kSharedBytes = Kernel::kSharedBytes);

  template <class... Maps>
  TW_MEMBER static void run(const Args& args, const Shape& shape, const Maps*... maps) {
    Kernel::run(product_args(args, shape.gemm_m), product_shape(shape, shape.gemm_n, shape.gemm_k), maps...);
  }
};

}  // namespace tw::conv
