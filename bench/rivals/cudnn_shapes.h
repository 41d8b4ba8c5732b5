// SPDX-License-Identifier: Apache-2.0
// A convolution as the descriptors of cuDNN have it.
#pragma once

#include <cstdint>
#include <vector>

#include <tilewright/conv.h>

namespace tilewright::bench {

// Images, channels, then the axes, two of them at least, whatever the order in memory, which the strides say.
struct CudnnTensor {
  std::vector<std::int64_t> dims, strides;
};
struct CudnnShapes {
  CudnnTensor x, w, y;
  std::vector<std::int64_t> strides, before, behind, dilations;  // of the axes
};
// Weights lie as w_layout says. Precondition: a problem's conv without a cache.
CudnnShapes cudnn_shapes(const Conv& conv);

}  // namespace tilewright::bench
