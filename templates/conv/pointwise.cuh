// SPDX-License-Identifier: Apache-2.0
// Pointwise convolutions by a kernel of gemm: x, w and y already lie as its matrices, with a row for each pixel.
#pragma once
#include "conv/params.cuh"
#include "gemm/params.cuh"

namespace tw::conv {

// Kernel: a gemm kernel, tw::gemm::WgmmaKernel<...> for one.
template <class Kernel>
struct Pointwise {
  TW_CONSTANTS(int, kThreads = Kernel::kThreads, kSharedBytes = Kernel::kSharedBytes);

  template <class... Maps>
  TW_MEMBER static void run(const Args& args, const Shape& shape, const Maps*... maps) {
    const gemm::Args product{args.x, args.w,        args.y, args.bias,      shape.gemm_m, 0,
                             0,      args.residual, 0,      args.workspace, args.alpha,   args.beta};
    const gemm::Shape of{shape.gemm_n,   shape.gemm_k, shape.alpha,    shape.global_divides,
                         shape.fast,     shape.beta,   shape.y_factor, shape.constant_weights,
                         shape.workspace};
    Kernel::run(product, of, maps...);
  }
};

}  // namespace tw::conv
