// SPDX-License-Identifier: Apache-2.0
// conv's mma in the emulator.
#pragma once

#include "emulator/conv.h"
#include "operations/conv/cuda/mma.cuh"

namespace conv_test {

// The matrix units' takes any layout; how it gathers x says which.
template <class X, class W, class Epi, gemm::MmaKnobs knobs, conv::GatherKnobs gather = conv::GatherKnobs{}>
struct Products {
  static constexpr int kPiece = 16 / sizeof(gemm::element_of<X>);
  // Rows of w are whole pieces where these are copied asynchronously, else of any width that unit_x divides.
  static constexpr bool kAlongChannels = gather.quant_block > 0 && !gather.taps_innermost;
  static constexpr int kLeastChannels = std::max<int>(
      {gather.unit == 0 || (knobs.async_copy && !W::kCodes && !fmt::is_table<W>()) ? kPiece : 3 * gather.unit,
       W::kBlock, gather.quant_block / (kAlongChannels ? 1 : 8)});
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    if (!gather.grouped) s.c /= s.groups, s.k = std::max(s.k, 5), s.groups = 1;
    if (gather.unit != 1) s.x_channels_first = 0;
    s.w_channels_first = gather.taps_innermost, s.y_channels_first = gather.y_channels_first;
    s.quant_block = gather.quant_block, s.quant_channels = kAlongChannels;
    if (gather.quant_block >= 64)
      for (Axis& axis : s.axes) axis.kernel = std::min(axis.kernel, 2);
    if (gather.unit == 0) return;
    if (!gather.cached) s.cache = 0;
    for (int a = 0; a < 3 && gather.taps != conv::Taps::table; ++a) {
      Axis& axis = s.axes[a];
      axis.pad = Pad::zero;
      if (gather.taps == conv::Taps::zeros) continue;
      axis.lo = p.hi[a] = 0, axis.in = std::max(axis.in, axis.dilation * (axis.kernel - 1) + 1);
    }
  }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    using Plan = conv::Mma<X, W, Epi, Fixed<knobs>::value, Fixed<gather>::value>;
    const u32 blocks =
        static_cast<u32>(ceil_div64(s.n * s.pixels(), knobs.block_m) * ceil_div64(s.k / s.groups, knobs.block_n)) *
        static_cast<u32>(knobs.split_k * s.groups);
    emu::run({{blocks, 1, 1}, Plan::kThreads, static_cast<u32>(knobs.split_k), Plan::kSharedBytes, seed},
             [&] { Plan::run(args, s); });
  }
};

}  // namespace conv_test
