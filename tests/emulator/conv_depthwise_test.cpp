// SPDX-License-Identifier: Apache-2.0
// conv's depthwise: rows of filters as banded matrices.
#include "emulator/conv.h"

#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "operations/conv/cuda/depthwise/kernel.cuh"

using namespace conv_test;

namespace {

// The kernel's extents are known when it is compiled.
template <class X, class Epi, conv::DepthwiseKnobs wanted>
struct Banded {
  static constexpr conv::DepthwiseKnobs knobs = wanted;
  static constexpr int kLeastChannels = 1;
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    s.groups = s.c = s.k = 8 * (1 + s.k % 7), s.x_channels_first = s.y_channels_first = 0, s.cache = 0;
    const int kernel[] = {1, knobs.kernel_h, knobs.kernel_w}, dilations[] = {1, knobs.dilation_h, knobs.dilation_w};
    for (int a = 0; a < 3; ++a) {
      Axis& axis = s.axes[a];
      if (kernel[a] > 1) s.first_axis = std::min(s.first_axis, a);
      axis.kernel = kernel[a], axis.stride = 1, axis.dilation = dilations[a];
      if (a == 0) axis.lo = p.hi[a] = 0;
      if (a > 0 && a >= s.first_axis) axis.in += 9;
    }
  }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    using Plan = conv::Depthwise<X, X, Epi, knobs>;
    const u32 blocks = min2(Plan::tiles_of(s), static_cast<u32>(1 + seed % 5));  // which take several tiles each
    emu::run({{blocks, 1, 1}, Plan::kThreads, 1, Plan::kSharedBytes, seed}, [&] { Plan::run(args, s); });
  }
};

}  // namespace

TEST_CASE("conv: rows of depthwise filters as banded matrices", "[conv]") {
  using Halves = Epilogue<f16, float, Act::none>;
  using Rounded = Epilogue<bf16, float, Act::silu>;
  using conv::DepthwiseKnobs;
  check_convolutions<
      fmt::bf16, fmt::bf16, Rounded,
      Banded<fmt::bf16, Rounded,
             DepthwiseKnobs{.tile_h = 16, .tile_w = 16, .images = 1, .warps = 4, .kernel_h = 7, .kernel_w = 7}>>(61, 8);
  // A tile's rows are those of several images, some of which do not exist; a filter of one row.
  check_convolutions<
      fmt::f16, fmt::f16, Halves,
      Banded<fmt::f16, Halves,
             DepthwiseKnobs{.tile_h = 7, .tile_w = 8, .images = 3, .warps = 2, .kernel_h = 3, .kernel_w = 3}>>(62, 8);
  check_convolutions<
      fmt::f16, fmt::f16, Halves,
      Banded<fmt::f16, Halves,
             DepthwiseKnobs{.tile_h = 1, .tile_w = 24, .images = 17, .warps = 1, .kernel_h = 1, .kernel_w = 9}>>(63, 8);
  check_convolutions<fmt::bf16, fmt::bf16, Rounded,
                     Banded<fmt::bf16, Rounded,
                            DepthwiseKnobs{.tile_h = 5,
                                           .tile_w = 16,
                                           .images = 2,
                                           .warps = 8,
                                           .kernel_h = 2,
                                           .kernel_w = 5,
                                           .dilation_h = 3,
                                           .dilation_w = 2}>>(64, 8);
}
