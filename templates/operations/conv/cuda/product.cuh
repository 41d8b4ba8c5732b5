// SPDX-License-Identifier: Apache-2.0
// The arguments and constants of the gemm that a kernel of gemm's computes for a convolution.
#pragma once
#include "operations/conv/params.cuh"
#include "operations/gemm/params.cuh"

namespace tw::conv {

// rows: of x and y as that kernel counts them; both are dense.
TW_FN gemm::Args product_args(const Args& args, i64 rows) {
  gemm::Args product{args.x, args.w, args.y, args.bias, rows, 0, 0};
  product.c = args.residual, product.workspace = args.workspace;
  product.alpha = args.alpha, product.beta = args.beta;
  return product;
}
TW_FN gemm::Shape product_shape(const Shape& shape, i64 n, i64 k) {
  gemm::Shape product{n, k, shape.alpha, shape.global_divides};
  product.fast = shape.fast, product.beta = shape.beta, product.y_factor = shape.y_factor;
  product.constant_weights = shape.constant_weights, product.workspace = shape.workspace;
  return product;
}

}  // namespace tw::conv
