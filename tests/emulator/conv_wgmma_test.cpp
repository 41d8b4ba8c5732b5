// SPDX-License-Identifier: Apache-2.0
// conv's wgmma: boxes of pixels, with halos and without, read as they lie or written to the workspace first.
#include "emulator/conv.h"

#include "conv/wgmma/kernel.cuh"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int8.cuh"
#include "formats/int8_row.cuh"

using namespace conv_test;

namespace {

// Hopper's warpgroup units read boxes of pixels: channels last, of one group, in pieces of 16 bytes; padding of the
// axes within a frame is zero. Frames are padded and cached as one likes where a box has one.
// As: the format that x and w are multiplied in.
template <class X, class W, class Epi, conv::WgmmaKnobs wanted, class As = X>
struct Boxes {
  static constexpr int kBytes = sizeof(gemm::element_of<As>), kLeastChannels = wanted.writes ? 1 : 16 / kBytes;
  static constexpr conv::WgmmaKnobs completed(int channels) {
    conv::WgmmaKnobs k = wanted;
    k.channels = channels, k.element_bytes = kBytes;
    return k;
  }
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    // Channels and the kernel are known when it is compiled.
    if (wanted.unfolds) return fit_columns(p);
    s.c = wanted.channels, s.k = 8 * s.k + (wanted.swapped ? 3 : 0), s.groups = 1;
    if (!wanted.writes) s.x_channels_first = s.w_channels_first = 0;
    s.y_channels_first = wanted.channels_first, s.fast = !same<As, X>();
    s.quant_block = wanted.quant_block, s.quant_channels = 1;
    if (wanted.quant_block >= 64)
      for (Axis& axis : s.axes) axis.kernel = std::min(axis.kernel, 2);
    if ((wanted.box_d > 1 && !wanted.writes) || s.first_axis > 0) s.cache = 0;
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
    s.k = 8 * s.k + (wanted.swapped ? 3 : 0);
    s.y_channels_first = wanted.channels_first, s.fast = !same<As, X>();
    s.quant_block = wanted.quant_block, s.quant_channels = 0;
  }
  static void run(const conv::Args& args, const conv::Shape& source, std::uint64_t seed) {
    const conv::Shape s = wanted.unfolds ? source.unfolded() : source;
    static constexpr conv::WgmmaKnobs knobs = completed(wanted.channels);
    using Plan = conv::Wgmma<gemm::element_of<X>, As, tw::select<same<As, X>(), W, As>, Epi, knobs>;
    const i32 channels = wanted.writes ? conv::written_channels(s.c, kBytes) : s.c;
    const i64 filter_bytes = conv::written_filter_bytes(s.k, s.taps(), s.c, kBytes);
    std::vector<u8> workspace(
        static_cast<std::size_t>(conv::written_x_at(filter_bytes) +
                                 s.n * s.axes[0].in * s.axes[1].in * s.axes[2].in * i64{channels} * kBytes) +
        128);
    u8* const written = workspace.data() + (128 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 128);
    conv::Args own = args;
    own.workspace = written;
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
    alignas(64) const TensorMap pixels = wanted.writes
                                             ? map_of(written + conv::written_x_at(filter_bytes), s.axes[0].in)
                                             : map_of(args.x.data, s.axes[0].in - s.cache),
                                cached = wanted.writes ? pixels : map_of(args.cache, std::max(s.cache, 1));
    const void* const w = wanted.writes ? written + gemm::kScheduleBytes : args.w.data;
    constexpr int kFilters = knobs.swapped ? product.block_m / knobs.cluster : product.block_n();
    alignas(64) const TensorMap filters =
        emu::tensor_map(w, kBytes, static_cast<u64>(channels), knobs.panel_k(), 128,
                        {{static_cast<u64>(s.k), static_cast<u64>(s.taps() * channels), kFilters},
                         {static_cast<u64>(s.taps()), static_cast<u64>(channels)}});
    const u32 blocks = static_cast<u32>(2 * knobs.cluster);
    emu::run({{blocks, 1, 1}, Plan::kThreads, static_cast<u32>(knobs.cluster), Plan::kSharedBytes, seed},
             [&] { Plan::run(own, source, &pixels, &filters, &cached); });
    CHECK(std::all_of(written, written + gemm::kScheduleBytes, [](u8 b) { return b == 0; }));
  }
};

}  // namespace

TEST_CASE("conv: Hopper's matrix units on boxes of pixels", "[conv]") {
  using Plain = Epilogue<float, gemm::NoBias, Act::none>;
  using Whole = Epilogue<bf16, float, Act::silu, float>;
  using Biased = Epilogue<float, float, Act::none>;
  using Halves = Epilogue<bf16, float, Act::none>;
  using conv::WgmmaKnobs;
  check_convolutions<
      fmt::bf16, fmt::bf16, Whole,
      Boxes<fmt::bf16, fmt::bf16, Whole,
            WgmmaKnobs{.box_w = 8, .box_h = 16, .features = 32, .swapped = true, .channels = 72, .skips = true}>>(21,
                                                                                                                  8);
  check_convolutions<fmt::bf16, fmt::bf16, Halves,
                     Boxes<fmt::bf16, fmt::bf16, Halves,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 96,
                                      .cluster = 2,
                                      .swapped = true,
                                      .halo = true,
                                      .kernel_h = 3,
                                      .channels = 96,
                                      .skips = true}>>(22, 8);
  check_convolutions<
      fmt::f16, fmt::f16, Plain,
      Boxes<fmt::f16, fmt::f16, Plain,
            WgmmaKnobs{.box_w = 8, .box_h = 10, .halo = true, .kernel_h = 2, .dilation_h = 2, .channels = 40}>>(23, 6);
  check_convolutions<fmt::f16, fmt::f16, Whole,
                     Boxes<fmt::f16, fmt::f16, Whole,
                           WgmmaKnobs{.box_w = 4, .box_h = 3, .box_d = 2, .box_n = 4, .cluster = 2, .channels = 16}>>(
      24, 6);
  check_convolutions<
      fmt::int8, fmt::int8_row, Biased,
      Boxes<fmt::int8, fmt::int8_row, Biased,
            WgmmaKnobs{.box_w = 8, .box_h = 16, .features = 64, .swapped = true, .channels = 160, .element_bytes = 1}>>(
      25, 6);
  check_convolutions<fmt::e4m3, fmt::e4m3, Plain,
                     Boxes<fmt::e4m3, fmt::e4m3, Plain,
                           WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 32, .element_bytes = 1, .skips = true}>>(26,
                                                                                                                    6);
  check_convolutions<fmt::bf16, fmt::bf16, Halves,
                     Boxes<fmt::bf16, fmt::bf16, Halves,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 32,
                                      .features = 96,
                                      .strips = 2,
                                      .stages = 5,
                                      .cluster = 2,
                                      .swapped = true,
                                      .halo = true,
                                      .kernel_h = 3,
                                      .channels = 64,
                                      .async_store = true}>>(27, 5);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     Boxes<fmt::f32, fmt::f32, Plain,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 40,
                                      .swapped = true,
                                      .halo = true,
                                      .kernel_h = 3,
                                      .channels = 36,
                                      .element_bytes = 4}>>(28, 5);
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Boxes<fmt::bf16, fmt::bf16, Whole,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 32,
                                      .swapped = true,
                                      .halo = true,
                                      .kernel_h = 3,
                                      .channels = 5,
                                      .writes = true}>>(29, 8);
  check_convolutions<fmt::f32, fmt::f32, Biased,
                     Boxes<fmt::f32, fmt::f32, Biased,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 64,
                                      .cluster = 2,
                                      .swapped = true,
                                      .channels = 70,
                                      .writes = true,
                                      .skips = true},
                           fmt::bf16>>(30, 6);
  check_convolutions<
      fmt::int8, fmt::int8_row, Biased,
      Boxes<fmt::int8, fmt::int8_row, Biased,
            WgmmaKnobs{
                .box_w = 16, .box_h = 3, .box_d = 2, .box_n = 1, .channels = 20, .element_bytes = 1, .writes = true}>>(
      31, 6);
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Boxes<fmt::bf16, fmt::bf16, Whole,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 10,
                                      .halo = true,
                                      .kernel_h = 3,
                                      .channels = 24,
                                      .channels_first = true,
                                      .writes = true}>>(32, 8);
  check_convolutions<fmt::f16, fmt::f16, Biased,
                     Boxes<fmt::f16, fmt::f16, Biased,
                           WgmmaKnobs{.box_w = 16, .box_h = 3, .box_d = 2, .channels = 24, .channels_first = true}>>(33,
                                                                                                                     6);
  check_convolutions<fmt::int8, fmt::int8_row, Halves,
                     Boxes<fmt::int8, fmt::int8_row, Halves,
                           WgmmaKnobs{.box_w = 3,
                                      .box_h = 16,
                                      .box_d = 2,
                                      .cluster = 2,
                                      .channels = 32,
                                      .element_bytes = 1,
                                      .channels_first = true}>>(34, 6);
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Boxes<fmt::bf16, fmt::bf16, Whole,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 48,
                                      .swapped = true,
                                      .halo = true,
                                      .kernel_h = 3,
                                      .channels = 70,
                                      .channels_first = true,
                                      .writes = true}>>(35, 8);
  check_convolutions<fmt::e4m3, fmt::e4m3, Plain,
                     Boxes<fmt::e4m3, fmt::e4m3, Plain,
                           WgmmaKnobs{.box_w = 16,
                                      .box_h = 8,
                                      .features = 24,
                                      .swapped = true,
                                      .channels = 32,
                                      .element_bytes = 1,
                                      .channels_first = true}>>(36, 6);
  check_convolutions<fmt::f32, fmt::f32, Halves,
                     Boxes<fmt::f32, fmt::f32, Halves,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 40,
                                      .swapped = true,
                                      .channels = 64,
                                      .channels_first = true,
                                      .writes = true},
                           fmt::bf16>>(37, 6);
}

TEST_CASE("conv: Hopper's matrix units on input that is fake quantized in the workspace", "[conv]") {
  using Whole = Epilogue<bf16, float, Act::silu, float>;
  using conv::WgmmaKnobs;
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Boxes<fmt::bf16, fmt::bf16, Whole,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 32,
                                      .swapped = true,
                                      .channels = 72,
                                      .writes = true,
                                      .quant_block = 16,
                                      .skips = true}>>(41, 6);
  check_convolutions<fmt::f16, fmt::f16, Plain,
                     Boxes<fmt::f16, fmt::f16, Plain,
                           WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 101, .writes = true, .quant_block = 64}>>(42,
                                                                                                                     5);
  check_convolutions<fmt::bf16, fmt::bf16, Plain,
                     Boxes<fmt::bf16, fmt::bf16, Plain,
                           WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 300, .writes = true, .quant_block = 256}>>(
      43, 4);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     Boxes<fmt::f32, fmt::f32, Plain,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 40,
                                      .stages = 4,
                                      .swapped = true,
                                      .channels = 132,
                                      .element_bytes = 4,
                                      .writes = true,
                                      .quant_block = 128}>>(44, 4);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     Boxes<fmt::f32, fmt::f32, Plain,
                           WgmmaKnobs{.box_w = 8,
                                      .box_h = 16,
                                      .features = 64,
                                      .swapped = true,
                                      .channels = 41,
                                      .writes = true,
                                      .quant_block = 32},
                           fmt::bf16>>(45, 5);
}

TEST_CASE("conv: Hopper's matrix units on columns that are fake quantized in the workspace", "[conv]") {
  using Whole = Epilogue<bf16, float, Act::silu, float>;
  using conv::WgmmaKnobs;
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Boxes<fmt::bf16, fmt::bf16, Whole,
                           WgmmaKnobs{.box_w = 128,
                                      .box_h = 1,
                                      .features = 32,
                                      .swapped = true,
                                      .channels = 72,
                                      .writes = true,
                                      .quant_block = 16,
                                      .unfolds = true}>>(51, 10);
  check_convolutions<fmt::f16, fmt::f16, Plain,
                     Boxes<fmt::f16, fmt::f16, Plain,
                           WgmmaKnobs{.box_w = 40,
                                      .box_h = 1,
                                      .box_n = 2,
                                      .channels = 360,
                                      .channels_first = true,
                                      .writes = true,
                                      .quant_block = 64,
                                      .unfolds = true}>>(52, 10);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     Boxes<fmt::f32, fmt::f32, Plain,
                           WgmmaKnobs{.box_w = 128,
                                      .box_h = 1,
                                      .features = 40,
                                      .stages = 5,
                                      .swapped = true,
                                      .channels = 168,
                                      .element_bytes = 4,
                                      .writes = true,
                                      .quant_block = 128,
                                      .unfolds = true}>>(53, 8);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     Boxes<fmt::f32, fmt::f32, Plain,
                           WgmmaKnobs{.box_w = 128,
                                      .box_h = 1,
                                      .features = 64,
                                      .stages = 5,
                                      .swapped = true,
                                      .channels = 600,
                                      .writes = true,
                                      .quant_block = 256,
                                      .unfolds = true},
                           fmt::bf16>>(54, 8);
}

TEST_CASE("conv: Hopper's matrix units fake quantize every kind of trouble exactly", "[conv]") {
  using conv::WgmmaKnobs;
  check_exactly<fmt::bf16, fmt::bf16,
                Boxes<fmt::bf16, fmt::bf16, Plain,
                      WgmmaKnobs{.box_w = 16, .box_h = 8, .channels = 100, .writes = true, .quant_block = 16}>>(
      pixels_of_taps(100, 2), 16, true);
  check_exactly<fmt::f16, fmt::f16,
                Boxes<fmt::f16, fmt::f16, Plain,
                      WgmmaKnobs{.box_w = 16, .box_h = 8, .channels = 264, .writes = true, .quant_block = 128}>>(
      pixels_of_taps(264, 1), 128, true);
  check_exactly<fmt::bf16, fmt::bf16,
                Boxes<fmt::bf16, fmt::bf16, Plain,
                      WgmmaKnobs{.box_w = 16,
                                 .box_h = 8,
                                 .features = 64,
                                 .swapped = true,
                                 .channels = 264,
                                 .writes = true,
                                 .quant_block = 256}>>(pixels_of_taps(264, 2), 256, true);
  check_exactly<fmt::bf16, fmt::bf16,
                Boxes<fmt::bf16, fmt::bf16, Plain,
                      WgmmaKnobs{.box_w = 24,
                                 .box_h = 1,
                                 .box_n = 4,
                                 .channels = 304,
                                 .writes = true,
                                 .quant_block = 16,
                                 .unfolds = true}>>(whole_images(304), 16, false);
  check_exactly<fmt::f16, fmt::f16,
                Boxes<fmt::f16, fmt::f16, Plain,
                      WgmmaKnobs{.box_w = 24,
                                 .box_h = 1,
                                 .box_n = 4,
                                 .channels = 304,
                                 .writes = true,
                                 .quant_block = 256,
                                 .unfolds = true}>>(whole_images(304), 256, false);
}
