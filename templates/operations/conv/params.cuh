// SPDX-License-Identifier: Apache-2.0
// Parameters of every conv kernel: what a call passes (tilewright::ConvArgs, byte for byte) and what prepare() fixed.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::conv {

struct Args {
  Operand x;
  Operand w;
  void* y;
  const void* bias;
  const void* residual;
  const void* cache;
  void* workspace;
  float alpha = 1, beta = 1;  // times those of Shape
  const float* amax = nullptr;
};

enum class Pad : i32 { zero, replicate, reflect };

// An axis; those that the problem does not have are of one element.
struct Axis {
  i32 in = 1, out = 1, kernel = 1, stride = 1, lo = 0, dilation = 1;
  Pad pad = Pad::zero;
};

// An axis of a tensor as its map has it (TensorMapPlan::axes_at): places, and elements from one to the next.
struct MapAxis {
  i64 extent, step;
};

struct Shape {
  i64 n;
  i32 c, k, groups;
  i32 first_axis;  // of those that the problem has, which are the last ones
  i32 cache;       // elements of the first axis that come from the cache
  Axis axes[3];    // outermost first
  i32 x_channels_first, y_channels_first, w_channels_first;
  i32 global_divides;  // the tensor-wide scales divide instead of multiplying
  i32 fast;            // fp8 sums may be the matrix units' alone: of use to the oracle only
  i32 constant_weights;
  i32 quant_block;     // elements of x that are fake quantized together; 0: it is not
  i32 quant_channels;  // they are channels of a pixel, not columns that an output pixel sees
  float alpha, beta;   // beta: of the residual
  float y_factor;      // 1 / y_scale
  i64 workspace;       // bytes
  // Behind the channels: width, height, depth and images of x and of what is cached; rows and taps of w.
  MapAxis x_map[4], cache_map[4], w_map[2];
  // The same of x and w that a kernel has written to the workspace (operations/conv/cuda/wgmma/channels_last.cuh).
  MapAxis written_x_map[4], written_w_map[2];
  i64 gemm_m, gemm_n, gemm_k;  // of the gemm that the convolution is: conv::as_gemm()

  TW_MEMBER i64 taps() const { return i64{axes[0].kernel} * axes[1].kernel * axes[2].kernel; }
  TW_MEMBER i64 columns() const { return taps() * (c / groups); }                        // of a row of w
  TW_MEMBER i64 pixels() const { return i64{axes[0].out} * axes[1].out * axes[2].out; }  // of an output image

  // Whether x's elements have a value for each column of each pixel that sees them.
  TW_MEMBER bool quantizes_columns() const { return quant_block > 0 && !quant_channels && taps() > 1; }
  // The same convolution of one group, with one tap, over what its output pixels see: x has a pixel for each of them,
  // side by side, and as many channels as a row of w has columns, channels first.
  TW_MEMBER Shape unfolded() const {
    Shape s = *this;
    s.c = static_cast<i32>(columns()), s.cache = 0;
    for (Axis& a : s.axes) a = {};
    s.axes[2].in = s.axes[2].out = static_cast<i32>(pixels());
    s.first_axis = 2;
    return s;
  }
};

// Channels of a pixel as a kernel writes it to the workspace: whole pieces of 16 bytes.
TW_FN constexpr i32 written_channels(i32 channels, int element_bytes) {
  const i32 piece = 16 / element_bytes;
  return (channels + piece - 1) / piece * piece;
}

// The element of an axis at place i, which may lie in its padding; -1: a zero there.
TW_FN i32 place_on(const Axis& a, i32 i) {
  if (i >= 0 && i < a.in) return i;
  if (a.pad == Pad::zero) return -1;
  if (a.pad == Pad::replicate) return i < 0 ? 0 : a.in - 1;
  return i < 0 ? -i : 2 * (a.in - 1) - i;
}

// The element that tap t of output o reads.
TW_FN i32 source_of(const Axis& a, i32 o, i32 t) {
  return place_on(a, static_cast<i32>(i64{o} * a.stride - a.lo + i64{t} * a.dilation));
}

// Where the element at these places of the axes is: in the cache or in x, whose first axis begins behind it.
struct Source {
  bool cached;
  i64 pixel, pixels;  // of that tensor
};
TW_FN Source source_at(const Shape& shape, i32 z, i32 y, i32 x) {
  const i32 f = shape.first_axis;  // no array is read there, which would have to be in memory
  const bool cached = (f == 0 ? z : f == 1 ? y : x) < shape.cache;
  const i64 before = cached ? 0 : shape.cache, first_extent = cached ? shape.cache : shape.axes[f].in - shape.cache;
  const auto place = [&](int a, i32 at) { return at - (a == f ? before : 0); };
  const auto extent = [&](int a) { return a == f ? first_extent : shape.axes[a].in; };
  return {cached, (place(0, z) * extent(1) + place(1, y)) * extent(2) + place(2, x), extent(0) * extent(1) * extent(2)};
}

// A tile's number as its places along axes, the one that counts fastest first.
struct TileNumber {
  u32 rest;
  TW_MEMBER i32 next(i32 count) {
    const u32 at = rest % static_cast<u32>(count);
    rest /= static_cast<u32>(count);
    return static_cast<i32>(at);
  }
};

// Where a pixel of a channel of an image is in a dense tensor of `channels` and `pixels` each image, in elements.
TW_FN i64 element_at(i32 channels_first, i64 image, i64 channel, i64 channels, i64 pixel, i64 pixels) {
  return channels_first ? (image * channels + channel) * pixels + pixel : (image * pixels + pixel) * channels + channel;
}

}  // namespace tw::conv
