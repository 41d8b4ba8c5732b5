// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/cudnn_shapes.h"

#include "bench/conv/conv_check.h"

namespace tilewright::bench {
namespace {

// Images or rows, channels, and pixels or taps, dense.
CudnnTensor dense(std::int64_t outer, std::int64_t channels, const std::vector<std::int64_t>& axes,
                  bool channels_first) {
  CudnnTensor t;
  t.dims = {outer, channels};
  t.dims.insert(t.dims.end(), axes.begin(), axes.end());
  t.strides.resize(t.dims.size());
  std::int64_t step = channels_first ? 1 : channels;
  for (std::size_t i = t.dims.size() - 1; i >= 2; --i) t.strides[i] = step, step *= t.dims[i];
  t.strides[1] = channels_first ? step : 1;
  t.strides[0] = channels_first ? step * channels : step;
  return t;
}

}  // namespace

CudnnShapes cudnn_shapes(const Conv& conv) {
  std::vector<ConvAxis> axes = axes_of(conv);
  if (axes.size() < 2) axes.insert(axes.begin(), {1, 1, 1, 1, 0, 0, 1});
  CudnnShapes s;
  std::vector<std::int64_t> in, taps, out;
  for (const ConvAxis& a : axes) {
    in.push_back(a.in), taps.push_back(a.kernel), out.push_back(a.out);
    s.strides.push_back(a.stride), s.dilations.push_back(a.dilation);
    s.before.push_back(a.before), s.behind.push_back(a.behind);
  }
  s.x = dense(conv.n, conv.c, in, conv.x_layout == TensorLayout::ncdhw);
  s.w = dense(conv.k, conv.c / conv.groups, taps, conv.w_layout == FilterLayout::kctrs);
  s.y = dense(conv.n, conv.k, out, conv.y_layout == TensorLayout::ncdhw);
  return s;
}

}  // namespace tilewright::bench
