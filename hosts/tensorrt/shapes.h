// SPDX-License-Identifier: Apache-2.0
// The shape of a result, as an expression of the shape of x.
#pragma once

#include "hosts/tensorrt/recipe.h"

namespace tilewright::tensorrt {

// -1 for extents that vary.
Dims known_extents(const nvinfer1::DimsExprs& shape);
nvinfer1::DimsExprs output_shape(const Recipe& recipe, const nvinfer1::DimsExprs& x, nvinfer1::IExprBuilder& builder);

}  // namespace tilewright::tensorrt
