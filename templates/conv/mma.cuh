// SPDX-License-Identifier: Apache-2.0
// Convolutions as gemms of the matrix units (gemm/mma/kernel.cuh), whose rows of x are gathered while they are copied.
#pragma once
#include "conv/gather.cuh"
#include "gemm/mma/kernel.cuh"

namespace tw::conv {

template <class X, class W, class Epi, const gemm::MmaKnobs& knobs>
struct Mma {
  using Product = gemm::Mma<X, W, Epi, knobs, Gathered>;
  TW_CONSTANTS(int, kThreads = Product::kThreads, kSharedBytes = Product::kSharedBytes);

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const gemm::Args product{args.x,     args.w,   args.y,        args.bias, shape.n * shape.pixels(),
                             0,          0,        args.residual, 0,         args.workspace,
                             args.alpha, args.beta};
    const gemm::Shape of{shape.k,        shape.columns(), shape.alpha,    shape.global_divides,
                         shape.fast,     shape.beta,      shape.y_factor, shape.constant_weights,
                         shape.workspace};
    Product::run(product, of, {args, shape});
  }
};

}  // namespace tw::conv
