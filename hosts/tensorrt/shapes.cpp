// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/shapes.h"

#include <algorithm>

namespace tilewright::tensorrt {
namespace {

using nvinfer1::DimensionOperation;
using nvinfer1::IDimensionExpr;
using nvinfer1::IExprBuilder;

// The number for one axis: all axes may have the same, or the default.
std::int64_t on_axis(const Axes& axes, int axis, std::int64_t none) {
  if (axes.rank == 0) return none;
  return axes.at[static_cast<std::size_t>(axes.rank == 1 ? 0 : axis)];
}

// floor((in + lo + hi - dilation (kernel - 1) - 1) / stride) + 1
const IDimensionExpr* output_extent(const Conv& c, int axis, const IDimensionExpr& in, IExprBuilder& builder) {
  const std::int64_t span = on_axis(c.dilation, axis, 1) * (on_axis(c.kernel, axis, 1) - 1) + 1;
  const std::int64_t added = on_axis(c.pad.lo, axis, 0) + on_axis(c.pad.hi, axis, 0) - span;
  const IDimensionExpr* places = added < 0 ? builder.operation(DimensionOperation::kSUB, in, *builder.constant(-added))
                                           : builder.operation(DimensionOperation::kSUM, in, *builder.constant(added));
  places = builder.operation(DimensionOperation::kFLOOR_DIV, *places, *builder.constant(on_axis(c.stride, axis, 1)));
  return builder.operation(DimensionOperation::kSUM, *places, *builder.constant(1));
}

}  // namespace

Dims known_extents(const nvinfer1::DimsExprs& shape) {
  Dims dims = {};
  dims.nbDims = std::min<std::int32_t>(shape.nbDims, Dims::MAX_DIMS);
  for (std::int32_t i = 0; i < dims.nbDims; ++i)
    dims.d[i] = shape.d[i] && shape.d[i]->isConstant() ? shape.d[i]->getConstantValue() : -1;
  return dims;
}

nvinfer1::DimsExprs output_shape(const Recipe& recipe, const nvinfer1::DimsExprs& x, IExprBuilder& builder) {
  nvinfer1::DimsExprs out = x;
  if (const Gemm* g = recipe.gemm()) {
    out.d[out.nbDims - 1] = builder.constant(g->n);
    return out;
  }
  const Conv& c = *recipe.conv();
  const int from = c.x_layout == TensorLayout::ncdhw ? 2 : 1, to = c.y_layout == TensorLayout::ncdhw ? 2 : 1;
  out.d[c.y_layout == TensorLayout::ncdhw ? 1 : out.nbDims - 1] = builder.constant(c.k);
  for (int i = 0; i < c.in.rank; ++i) out.d[to + i] = output_extent(c, i, *x.d[from + i], builder);
  return out;
}

}  // namespace tilewright::tensorrt
