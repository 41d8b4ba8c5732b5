// SPDX-License-Identifier: Apache-2.0
// conv's wgmma in the emulator.
#pragma once

#include "emulator/conv.h"
#include "operations/conv/cuda/wgmma/kernel.cuh"

namespace conv_test {

// Hopper's warpgroup units read boxes of pixels: channels last, of one group, in pieces of 16 bytes; padding of the
// axes within a frame is zero. Frames are padded and cached as one likes where a box has one.
// As: the format that x and w are multiplied in, which a launch writes to the workspace if it is another one than w's.
template <class X, class W, class Epi, conv::WgmmaKnobs wanted, class As = void>
struct Boxes {
  using To = typename tw::select<same<As, void>(), X, As>::Element;
  static constexpr int kBytes = sizeof(To), kLeastChannels = wanted.writes_x ? 1 : 16 / kBytes;
  static constexpr conv::WgmmaKnobs completed() {
    conv::WgmmaKnobs k = wanted;
    k.element_bytes = kBytes;
    return k;
  }
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    // Channels and the kernel are known when it is compiled.
    if (wanted.unfolds) return fit_columns(p);
    s.c = wanted.channels, s.k = 8 * s.k + (wanted.swapped ? 3 : 0), s.groups = 1;
    if (wanted.tiles) s.k = s.k / 8 % 3 * 64 + 64;
    s.workspace = wanted.writes_x || wanted.writes_w || wanted.tiles;  // weights may be rounded
    if (!wanted.writes_x) s.x_channels_first = 0;
    s.w_channels_first = wanted.w_channels_first;
    s.y_channels_first = wanted.channels_first, s.fast = same<gemm::element_of<X>, float>() && !same<To, float>();
    s.quant_block = wanted.quant_block, s.quant_channels = 1;
    if (wanted.quant_block >= 64)
      for (Axis& axis : s.axes) axis.kernel = std::min(axis.kernel, 2);
    if ((wanted.box_d > 1 && !wanted.writes_x) || s.first_axis > 0) s.cache = 0;
    if (wanted.resident) {  // as many taps as there are stages
      s.first_axis = 0, s.axes[0].kernel = s.axes[2].kernel = 2;
      s.k = s.k % wanted.features + 1;
    }
    for (int a = 0; a < 3; ++a) {
      Axis& axis = s.axes[a];
      if (a > 0 || wanted.box_d > 1 || wanted.skips) axis.pad = Pad::zero;
      if (a == 1 && wanted.halo) {
        axis.stride = 1, axis.kernel = wanted.kernel_h, axis.dilation = wanted.dilation_h;
      }
    }
  }
  // Of a kernel with as many columns.
  static void fit_columns(Picked& p) {
    conv::Shape& s = p.shape;
    const int taps[] = {s.first_axis > 0 ? 1 : 2, s.first_axis > 1 ? 1 : 3, 4};
    for (int a = 0; a < 3; ++a) s.axes[a].kernel = taps[a];
    s.c = wanted.channels / (taps[0] * taps[1] * taps[2]), s.groups = 1;
    s.k = 8 * s.k + (wanted.swapped ? 3 : 0), s.workspace = 1, s.w_channels_first = wanted.w_channels_first;
    s.y_channels_first = wanted.channels_first, s.fast = same<gemm::element_of<X>, float>() && !same<To, float>();
    s.quant_block = wanted.quant_block, s.quant_channels = 0;
  }
  static void run(const conv::Args& args, const conv::Shape& source, std::uint64_t seed) {
    const conv::Shape s = wanted.unfolds ? source.unfolded() : source;
    static constexpr conv::WgmmaKnobs knobs = completed();
    using Plan = conv::Wgmma<X, W, tw::select<same<As, void>(), void, To>, Epi, knobs>;
    const i32 channels = conv::written_channels(s.c, kBytes);
    const i64 filter_bytes = wanted.writes_w ? conv::written_filter_bytes(s.k, s.taps(), s.c, kBytes) : 0;
    std::vector<u8> workspace(
        static_cast<std::size_t>(conv::written_x_at(filter_bytes) +
                                 s.n * s.axes[0].in * s.axes[1].in * s.axes[2].in * i64{channels} * kBytes) +
        128);
    u8* const written = workspace.data() + (128 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 128);
    conv::Args own = args;
    own.workspace = written;
    PackedWeights<X, W, wanted.tiles> packed;
    if constexpr (wanted.tiles) own.w = packed.pack(args.w, s.k, s.columns(), seed);
    const auto map_of = [&](const void* data, i64 depth) {
      std::vector<emu::MapAxis> axes;
      u64 step = static_cast<u64>(channels);
      const i64 extents[] = {s.axes[2].in, s.axes[1].in, depth, s.n};
      for (int a = 0; a < 4; ++a) {
        const u64 extent = static_cast<u64>(extents[a]);
        const u32 stride = a < 3 ? static_cast<u32>(s.axes[2 - a].stride) : 1;
        axes.push_back({extent, step, static_cast<u32>(knobs.part(a)), stride});
        step *= extent;
      }
      return emu::tensor_map(data, kBytes, static_cast<u64>(channels), knobs.panel_k(), 128, axes);
    };
    constexpr gemm::WgmmaKnobs product = knobs.product();
    alignas(64) const TensorMap pixels = wanted.writes_x
                                             ? map_of(written + conv::written_x_at(filter_bytes), s.axes[0].in)
                                             : map_of(args.x.data, s.axes[0].in - s.cache),
                                cached = wanted.writes_x ? pixels : map_of(args.cache, std::max(s.cache, 1));
    const void* const w = wanted.writes_w ? written + gemm::kScheduleBytes : args.w.data;
    constexpr int kFilters = knobs.swapped ? product.block_m / knobs.cluster : product.block_n();
    alignas(64) const TensorMap filters =
        emu::tensor_map(w, kBytes, static_cast<u64>(channels), knobs.panel_k(), 128,
                        {{static_cast<u64>(s.k), static_cast<u64>(s.taps() * channels), kFilters},
                         {static_cast<u64>(s.taps()), static_cast<u64>(channels)}});
    const u32 blocks = static_cast<u32>(2 * knobs.cluster);
    emu::run({{blocks, 1, 1}, Plan::kThreads, static_cast<u32>(knobs.cluster), Plan::kSharedBytes, seed}, [&] {
      wanted.tiles ? Plan::run(own, source, &pixels, &cached) : Plan::run(own, source, &pixels, &filters, &cached);
    });
    CHECK(std::all_of(written, written + gemm::kScheduleBytes, [](u8 b) { return b == 0; }));
  }
};

// As check_convolutions() and check_exactly(), of one kernel.
template <class X, class W, class Epi, conv::WgmmaKnobs knobs, class As = void>
void check_boxes(unsigned seed, int count) {
  check_convolutions<X, W, Epi, Boxes<X, W, Epi, knobs, As>>(seed, count);
}
template <class X, class W, conv::WgmmaKnobs knobs>
void check_boxes_exactly(const Picked& p, int block, bool along_channels) {
  check_exactly<X, W, Boxes<X, W, Plain, knobs>>(p, block, along_channels);
}

}  // namespace conv_test
