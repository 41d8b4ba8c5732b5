// SPDX-License-Identifier: Apache-2.0
// conv's kn2row: each pixel times all taps, shifted and added.
#include "emulator/conv.h"

#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "operations/conv/cuda/kn2row/kernel.cuh"

using namespace conv_test;

namespace {

// The kernel's extents and channels are known when it is compiled.
template <class X, class Epi, conv::Kn2rowKnobs wanted>
struct AllTaps {
  static constexpr conv::Kn2rowKnobs knobs = wanted;
  static constexpr int kLeastChannels = 1;
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    s.groups = 1, s.c = knobs.channels, s.k = knobs.features, s.x_channels_first = 0;
    const int kernel[] = {knobs.kernel_d, knobs.kernel_h, knobs.kernel_w},
              dilations[] = {1, knobs.dilation_h, knobs.dilation_w};
    for (int a = 0; a < 3; ++a) {
      Axis& axis = s.axes[a];
      if (kernel[a] > 1) s.first_axis = std::min(s.first_axis, a);
      axis.kernel = kernel[a], axis.stride = 1, axis.dilation = dilations[a];
      if (a >= s.first_axis) axis.in += a == 0 ? 1 : 7;
    }
    if (s.first_axis != 0) s.cache = 0;
  }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    using Plan = conv::Kn2row<X, X, Epi, knobs>;
    const u32 blocks = min2(Plan::tiles_of(s), static_cast<u32>(1 + seed % 5));  // which take several tiles each
    emu::run({{blocks, 1, 1}, Plan::kThreads, 1, Plan::kSharedBytes, seed}, [&] { Plan::run(args, s); });
  }
};

}  // namespace

TEST_CASE("conv: each pixel times all taps, shifted and added", "[conv]") {
  using Halves = Epilogue<f16, float, Act::none, f16>;
  using conv::Kn2rowKnobs;
  // Frame after frame: all of them, or some in a block. Channels that are no whole stage.
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     AllTaps<fmt::bf16, Whole,
                             Kn2rowKnobs{.tile_h = 8,
                                         .tile_w = 16,
                                         .warps = 4,
                                         .stages = 3,
                                         .channels = 72,
                                         .features = 3,
                                         .kernel_d = 3,
                                         .kernel_h = 3,
                                         .kernel_w = 3}>>(51, 10);
  check_convolutions<fmt::f16, fmt::f16, Halves,
                     AllTaps<fmt::f16, Halves,
                             Kn2rowKnobs{.tile_h = 4,
                                         .tile_w = 16,
                                         .warps = 2,
                                         .stages = 2,
                                         .frames = 2,
                                         .channels = 40,
                                         .features = 4,
                                         .kernel_d = 2,
                                         .kernel_h = 2,
                                         .kernel_w = 3,
                                         .dilation_h = 2}>>(52, 10);
  // One frame. Two pixels of a thread, a stage of more channels than there are, one row of products.
  check_convolutions<fmt::f16, fmt::f16, Plain,
                     AllTaps<fmt::f16, Plain,
                             Kn2rowKnobs{.tile_h = 8,
                                         .tile_w = 8,
                                         .warps = 1,
                                         .chunk = 64,
                                         .stages = 4,
                                         .channels = 24,
                                         .features = 1,
                                         .kernel_h = 3,
                                         .kernel_w = 3,
                                         .dilation_w = 3}>>(53, 10);
  check_convolutions<
      fmt::bf16, fmt::bf16, Plain,
      AllTaps<fmt::bf16, Plain,
              Kn2rowKnobs{
                  .tile_h = 1, .tile_w = 64, .warps = 2, .stages = 2, .channels = 64, .features = 2, .kernel_w = 5}>>(
      54, 10);
}
