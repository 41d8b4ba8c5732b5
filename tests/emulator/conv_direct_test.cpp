// SPDX-License-Identifier: Apache-2.0
// conv's direct: tiles of pixels without matrix units.
#include "emulator/conv.h"

#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int8.cuh"
#include "formats/int8_row.cuh"
#include "formats/int8_tensor.cuh"
#include "formats/q4_0.cuh"
#include "operations/conv/cuda/direct/kernel.cuh"

using namespace conv_test;

namespace {

// Kernels and steps are known when it is compiled, and both tensors have one layout. Pieces of x and runs of y are
// whole.
template <class X, class W, class Epi, conv::DirectKnobs wanted>
struct PixelTiles {
  static constexpr int kLeastChannels = 1;
  static constexpr conv::DirectKnobs knobs = [] {
    conv::DirectKnobs k = wanted;
    k.element_bytes = sizeof(gemm::element_of<X>);
    return k;
  }();
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    const int multiple = knobs.channels_first ? 1 : std::max(knobs.piece, knobs.run);
    s.groups = multiple * (1 + s.k % 5), s.c = s.groups * knobs.group_in, s.k = s.groups * knobs.group_out;
    s.x_channels_first = s.y_channels_first = knobs.channels_first;
    const int kernel[] = {knobs.kernel_d, knobs.kernel_h, knobs.kernel_w},
              strides[] = {0, knobs.stride_h, knobs.stride_w}, dilations[] = {0, knobs.dilation_h, knobs.dilation_w};
    for (int a = 0; a < 3; ++a) {
      Axis& axis = s.axes[a];
      if (kernel[a] > 1) s.first_axis = std::min(s.first_axis, a);
      axis.kernel = kernel[a];
      if (a == 0) continue;
      axis.stride = strides[a], axis.dilation = dilations[a], axis.in += 4;
      if (!knobs.mirrors) axis.pad = Pad::zero;
    }
    if (!knobs.cached) s.cache = 0;
    if (!knobs.channels_first) return;
    // The first input is so far from a piece's start, and the last output ends a run.
    Axis& width = s.axes[2];
    width.in = (width.in / knobs.piece + 2) * knobs.piece;
    width.lo = (knobs.piece - knobs.first) % knobs.piece + (p.hi[2] % 2 ? 0 : knobs.piece);
    width.lo = std::min(width.lo, width.in - 1);
    const int reach = width.dilation * (width.kernel - 1) + 1;
    while (width.in + width.lo + p.hi[2] < reach ||
           ((width.in + width.lo + p.hi[2] - reach) / width.stride + 1) % knobs.run)
      ++p.hi[2];
    if (p.hi[2] >= width.in && width.pad == Pad::reflect) width.pad = Pad::replicate;
  }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    using Plan = conv::Direct<X, W, Epi, knobs>;
    const Axis* axes = s.axes;
    const i64 blocks = s.n * axes[0].out * ceil_div(axes[1].out, knobs.block_h()) *
                       ceil_div(axes[2].out, knobs.block_w()) * ceil_div(s.groups, knobs.block_groups()) *
                       knobs.parts();
    emu::run({{static_cast<u32>(blocks), 1, 1}, Plan::kThreads, 1, Plan::kSharedBytes, seed},
             [&] { Plan::run(args, s); });
  }
};

}  // namespace

TEST_CASE("conv: tiles of pixels without matrix units", "[conv]") {
  using Halves = Epilogue<f16, float, Act::none, f16>;
  using Bytes = Epilogue<e4m3, float, Act::relu>;
  using conv::DirectKnobs;
  // Channels innermost: depthwise, in straight code.
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     PixelTiles<fmt::bf16, fmt::bf16, Whole,
                                DirectKnobs{.groups = 2,
                                            .tile_w = 4,
                                            .tile_h = 3,
                                            .threads_c = 8,
                                            .threads_w = 2,
                                            .threads_h = 2,
                                            .whole = true,
                                            .kernel_h = 3,
                                            .kernel_w = 3,
                                            .mirrors = true,
                                            .rows = 3,
                                            .piece = 8,
                                            .run = 2,
                                            .async_copy = true}>>(31, 10);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     PixelTiles<fmt::f32, fmt::f32, Plain,
                                DirectKnobs{.tile_w = 2,
                                            .tile_h = 2,
                                            .threads_c = 32,
                                            .threads_w = 2,
                                            .whole = true,
                                            .kernel_h = 2,
                                            .kernel_w = 3,
                                            .stride_h = 2,
                                            .stride_w = 3,
                                            .dilation_h = 3,
                                            .dilation_w = 2,
                                            .mirrors = true,
                                            .cached = true,
                                            .rows = 2}>>(32, 10);
  // Kernel rows in a loop, in stages, with a frame for each of the kernel's.
  check_convolutions<fmt::f16, fmt::f16, Halves,
                     PixelTiles<fmt::f16, fmt::f16, Halves,
                                DirectKnobs{.groups = 2,
                                            .features = 2,
                                            .tile_w = 3,
                                            .tile_h = 2,
                                            .threads_c = 4,
                                            .threads_w = 4,
                                            .threads_h = 2,
                                            .group_in = 1,
                                            .group_out = 2,
                                            .kernel_d = 3,
                                            .kernel_h = 5,
                                            .kernel_w = 2,
                                            .cached = true,
                                            .rows = 2,
                                            .piece = 4,
                                            .run = 4,
                                            .async_copy = true}>>(33, 8);
  // Small groups, whose output channels are divided among blocks.
  check_convolutions<fmt::bf16, fmt::int8_row, Plain,
                     PixelTiles<fmt::bf16, fmt::int8_row, Plain,
                                DirectKnobs{.features = 2,
                                            .tile_w = 2,
                                            .tile_h = 2,
                                            .threads_c = 4,
                                            .threads_w = 4,
                                            .threads_h = 2,
                                            .whole = true,
                                            .group_in = 3,
                                            .group_out = 5,
                                            .kernel_d = 2,
                                            .kernel_h = 3,
                                            .kernel_w = 3,
                                            .rows = 3}>>(34, 8);
  check_convolutions<
      fmt::int8_tensor, fmt::int8, Bytes,
      PixelTiles<fmt::int8_tensor, fmt::int8, Bytes,
                 DirectKnobs{
                     .groups = 4, .tile_w = 4, .threads_c = 4, .threads_w = 8, .kernel_w = 4, .piece = 16, .run = 4}>>(
      35, 8);
  // The width innermost.
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     PixelTiles<fmt::bf16, fmt::bf16, Whole,
                                DirectKnobs{.tile_w = 8,
                                            .tile_h = 2,
                                            .threads_c = 2,
                                            .threads_w = 2,
                                            .threads_h = 8,
                                            .whole = true,
                                            .kernel_h = 5,
                                            .kernel_w = 5,
                                            .channels_first = true,
                                            .rows = 5,
                                            .piece = 8,
                                            .first = 6,
                                            .run = 8,
                                            .async_copy = true}>>(36, 10);
  check_convolutions<fmt::f32, fmt::f16, Plain,
                     PixelTiles<fmt::f32, fmt::f16, Plain,
                                DirectKnobs{.tile_w = 2,
                                            .tile_h = 2,
                                            .threads_c = 4,
                                            .threads_w = 4,
                                            .threads_h = 2,
                                            .group_in = 2,
                                            .group_out = 1,
                                            .kernel_d = 2,
                                            .kernel_h = 4,
                                            .kernel_w = 3,
                                            .stride_h = 1,
                                            .stride_w = 2,
                                            .dilation_w = 2,
                                            .channels_first = true,
                                            .mirrors = true,
                                            .cached = true,
                                            .rows = 4,
                                            .piece = 2,
                                            .first = 1,
                                            .run = 2}>>(37, 10);
  check_convolutions<fmt::f16, fmt::e4m3_row, Halves,
                     PixelTiles<fmt::f16, fmt::e4m3_row, Halves,
                                DirectKnobs{.features = 3,
                                            .tile_w = 7,
                                            .threads_c = 3,
                                            .threads_w = 11,
                                            .group_in = 1,
                                            .group_out = 3,
                                            .kernel_w = 4,
                                            .channels_first = true,
                                            .cached = true}>>(38, 10);
}
