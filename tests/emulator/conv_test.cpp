// SPDX-License-Identifier: Apache-2.0
// conv's reference and the kernels that it borrows from gemm's mma, and whole from gemm.
#include "emulator/conv_mma.h"

#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_g32.cuh"
#include "formats/int8.cuh"
#include "formats/int8_row.cuh"
#include "formats/int8_tensor.cuh"
#include "formats/nf4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_1.cuh"
#include "formats/sign_row.cuh"
#include "formats/signbit_row.cuh"
#include "operations/conv/cuda/pointwise.cuh"
#include "operations/gemm/cuda/signs.cuh"

using namespace conv_test;

namespace {

// The reference, and as an oracle, on weights that were packed: the same values, and bounds that are no smaller.
template <class X, class W, class Epi>
struct TiledReference {
  using Element = tile_element<X, W>;
  using Tile = typename W::template Tile<Element>;
  static constexpr int kLeastChannels = TiledUnit<W, Element>::kPanelK;
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    s.c = kLeastChannels, s.k = 64, s.groups = 1, s.w_channels_first = 0, s.n = 1;
  }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    PackedWeights<X, W, true> weights;
    const auto cells = static_cast<std::size_t>(s.n * s.pixels() * s.k);
    std::vector<float> plain(2 * cells), tiled(2 * cells);
    conv::Args packed = args;
    packed.w = weights.pack(args.w, s.k, s.columns(), seed);
    using Any = AnyShape<X, W, Epi>;
    Any::template launch<conv::Reference<X, W, Epi, false, Element>>(packed, s, seed);
    packed.y = tiled.data();
    Any::template launch<conv::Reference<X, W, Epi, true, Element>>(packed, s, seed);
    conv::Args judged = args;
    judged.y = plain.data();
    Any::template launch<conv::Reference<X, W, Epi, true>>(judged, s, seed);
    CHECK(std::memcmp(plain.data(), tiled.data(), cells * sizeof(float)) == 0);
    bool wider = true;
    for (std::size_t i = cells; i < 2 * cells && (Tile::rounding() > 0); ++i) wider &= tiled[i] >= plain[i];
    CHECK(wider);
  }
};

// Kernels of gemm take what is a gemm in memory.
void make_pointwise(Picked& p) {
  conv::Shape& s = p.shape;
  std::fill(p.hi, p.hi + 3, 0);
  s.c /= s.groups, s.groups = 1, s.x_channels_first = s.y_channels_first = 0;
  for (Axis& axis : s.axes) axis.kernel = axis.stride = 1, axis.lo = 0, axis.pad = Pad::zero;
}

// Hopper's warpgroup units: whole panels of channels, eights of output channels.
template <class X, class W, class Epi, gemm::WgmmaKnobs knobs>
struct PointwiseWgmma {
  static constexpr int kBytes = sizeof(gemm::element_of<X>), kLeastChannels = 128 / kBytes;
  static void fit(Picked& p) {
    make_pointwise(p);
    p.shape.k = 8 * p.shape.k;
  }
  static void run(conv::Args args, conv::Shape s, std::uint64_t seed) {
    using Gemm =
        gemm::WgmmaKernel<tw::select<knobs.swapped, W, X>, tw::select<knobs.swapped, X, W>, Epi, Fixed<knobs>::value>;
    using Plan = conv::Pointwise<Gemm>;
    constexpr u32 kClusters = 3;  // at most, so that some take several tiles, or parts of them
    constexpr int kPanel = 128 / kBytes;
    const auto map_of = [&](const void* data, i64 rows, bool columns) {
      const Box box = box_of<Gemm>(rows, columns);
      return emu::tensor_map(data, kBytes, static_cast<u64>(s.c), static_cast<u64>(rows),
                             static_cast<u64>(s.c * kBytes), kPanel, box.rows, 128, box.panels);
    };
    const TensorMap x = map_of(args.x.data, s.gemm_m, !knobs.swapped), w = map_of(args.w.data, s.k, knobs.swapped);
    i64 slots = 0;
    if constexpr (knobs.schedule == Schedule::stream_k)
      slots = 2 * kClusters * static_cast<i64>(knobs.cluster * Gemm::Parts::kSlotBytes);
    std::vector<u8> workspace(static_cast<std::size_t>(gemm::kScheduleBytes + slots));
    std::fill(workspace.begin() + gemm::kScheduleBytes, workspace.end(), u8{0xff});
    args.workspace = workspace.data(), s.workspace = static_cast<i64>(workspace.size());
    emu::run(
        {{kClusters * knobs.cluster, 1, 1}, Plan::kThreads, static_cast<u32>(knobs.cluster), Plan::kSharedBytes, seed},
        [&] { Plan::run(args, s, knobs.swapped ? &w : &x, knobs.swapped ? &x : &w); });
    CHECK(std::all_of(workspace.begin(), workspace.begin() + gemm::kScheduleBytes, [](u8 b) { return b == 0; }));
  }
};
// A grid with a block, or a cluster, for each tile. Any number of channels.
template <class X, class W, class Gemm, int block_m, int block_n, int split_k = 1>
struct PointwiseGrid {
  static constexpr int kLeastChannels = std::max<int>(4, W::kBlock);
  static void fit(Picked& p) { make_pointwise(p); }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    using Plan = conv::Pointwise<Gemm>;
    const u32 blocks = static_cast<u32>(ceil_div64(s.gemm_m, block_m) * ceil_div64(s.k, block_n)) * split_k;
    emu::run({{blocks, 1, 1}, Plan::kThreads, static_cast<u32>(split_k), Plan::kSharedBytes, seed},
             [&] { Plan::run(args, s); });
  }
};

// Units of two bytes.
template <class X, class W, class Gemm, int block_m, int block_n>
struct PointwiseSigns : PointwiseGrid<X, W, Gemm, block_m, block_n> {
  static constexpr int kLeastChannels = 16;
};

}  // namespace

TEST_CASE("conv: the reference, every pad mode, layout, stride, dilation, group and cache", "[conv]") {
  check_convolutions<fmt::f32, fmt::f32, Epilogue<float, gemm::NoBias, Act::none>>(1, 40);
  check_convolutions<fmt::bf16, fmt::bf16, Epilogue<bf16, float, Act::silu, float>>(2, 30);
  check_convolutions<fmt::int8, fmt::int8_row, Epilogue<float, float, Act::none>>(3, 20);
  check_convolutions<fmt::e4m3, fmt::e4m3, Epilogue<f16, gemm::NoBias, Act::relu, float>>(4, 20);
  check_convolutions<fmt::f16, fmt::q4_0, Epilogue<float, float, Act::none>>(5, 15);
}

// Pixels have a scale each, and padding adds nothing: zeros have no sign.
TEST_CASE("conv: signs by signs, by the reference and where a pixel is one tap by gemm's kernels of bits", "[conv]") {
  using Plain = Epilogue<float, float, Act::none>;
  using Sign = fmt::sign_row;
  using Signbit = fmt::signbit_row;
  check_convolutions<Sign, Sign, Plain>(71, 25);
  check_convolutions<Signbit, Sign, Whole>(72, 15);
  check_convolutions<Signbit, Signbit, Epilogue<f16, gemm::NoBias, Act::relu, float>>(73, 15);
  using Mma = gemm::SignProducts<gemm::Mma<
      fmt::SignBytes<Sign>, fmt::SignBytes<Signbit>, Plain,
      Fixed<gemm::MmaKnobs{
          .block_m = 16, .block_k = 64, .warps_m = 1, .warps_n = 4, .stages = 2, .async_copy = false, .unit_x = 2}>::
          value>>;
  check_convolutions<Sign, Signbit, Plain, PointwiseSigns<Sign, Signbit, Mma, 16, gemm::MmaKnobs{}.block_n>>(74, 8);
  constexpr gemm::GemvKnobs one{.tokens = 1, .unit = 2, .lanes = 4, .staged_k = 16};
  using Gemv = gemm::SignProducts<gemm::Gemv<fmt::SignBytes<Sign>, fmt::SignBytes<Sign>, Plain, Fixed<one>::value>>;
  check_convolutions<Sign, Sign, Plain, PointwiseSigns<Sign, Sign, Gemv, 1, one.block_rows()>>(75, 8);
}

TEST_CASE("conv: the reference on weights in tiles", "[conv]") {
  using Plain = Epilogue<float, float, Act::none>;
  check_convolutions<fmt::bf16, fmt::int4_g32, Plain, TiledReference<fmt::bf16, fmt::int4_g32, Plain>>(61, 2);
  check_convolutions<fmt::f16, fmt::q4_1, Plain, TiledReference<fmt::f16, fmt::q4_1, Plain>>(62, 2);
  check_convolutions<fmt::e4m3, fmt::nvfp4, Plain, TiledReference<fmt::e4m3, fmt::nvfp4, Plain>>(63, 2);
}

TEST_CASE("conv: the matrix units on gathered input", "[conv]") {
  using Biased = Epilogue<float, float, Act::none>;
  check_convolutions<fmt::bf16, fmt::bf16, Whole, Products<fmt::bf16, fmt::bf16, Whole, gemm::MmaKnobs{}>>(11, 12);
  check_convolutions<fmt::f16, fmt::f16, Plain,
                     Products<fmt::f16, fmt::f16, Plain,
                              gemm::MmaKnobs{.block_m = 16, .block_k = 32, .warps_m = 1, .warps_n = 4, .split_k = 2}>>(
      12, 8);
  check_convolutions<fmt::f16, fmt::f16, Whole,
                     Products<fmt::f16, fmt::f16, Whole,
                              gemm::MmaKnobs{.block_m = 32, .warps_m = 1, .stages = 2, .async_copy = false}>>(13, 8);
  check_convolutions<fmt::int8, fmt::int8_row, Biased,
                     Products<fmt::int8, fmt::int8_row, Biased, gemm::MmaKnobs{.block_k = 128, .unit_x = 16}>>(14, 8);
  check_convolutions<fmt::e4m3, fmt::e4m3, Plain,
                     Products<fmt::e4m3, fmt::e4m3, Plain, gemm::MmaKnobs{.block_k = 64, .unit_x = 16}>>(15, 8);
  check_convolutions<fmt::f16, fmt::q4_0, Biased,
                     Products<fmt::f16, fmt::q4_0, Biased, gemm::MmaKnobs{.block_k = 64, .unit_w = 32}>>(16, 6);
  check_convolutions<fmt::bf16, fmt::nf4, Biased,
                     Products<fmt::bf16, fmt::nf4, Biased, gemm::MmaKnobs{.block_k = 64, .unit_w = 64}>>(17, 4);
}

TEST_CASE("conv: the matrix units on PyTorch's layouts", "[conv]") {
  using Biased = Epilogue<float, float, Act::none>;
  using conv::GatherKnobs;
  using conv::Taps;
  using gemm::MmaKnobs;
  constexpr MmaKnobs one = {.stages = 2, .async_copy = false, .unit_x = 1};  // w element by element
  check_convolutions<
      fmt::bf16, fmt::bf16, Whole,
      Products<fmt::bf16, fmt::bf16, Whole, one,
               GatherKnobs{.unit = 1, .taps_innermost = true, .taps = Taps::zeros, .y_channels_first = true}>>(31, 16);
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Products<fmt::bf16, fmt::bf16, Whole, one,
                              GatherKnobs{.unit = 1,
                                          .taps_innermost = true,
                                          .taps = Taps::table,
                                          .places = 9,
                                          .cached = true,
                                          .y_channels_first = true}>>(32, 16);
  check_convolutions<fmt::f16, fmt::f16, Plain,
                     Products<fmt::f16, fmt::f16, Plain,
                              MmaKnobs{.block_m = 16, .block_k = 128, .warps_m = 1, .warps_n = 4, .split_k = 2},
                              GatherKnobs{.unit = 1, .taps = Taps::zeros, .y_channels_first = true}>>(33, 10);
  check_convolutions<fmt::f16, fmt::f16, Biased,
                     Products<fmt::f16, fmt::f16, Biased, MmaKnobs{.block_m = 32, .block_k = 32, .warps_n = 4},
                              GatherKnobs{.unit = 1, .taps_innermost = true, .taps = Taps::table, .places = 9}>>(34, 8);
  // Pieces of channels, stored along pixels.
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Products<fmt::bf16, fmt::bf16, Whole, MmaKnobs{}, GatherKnobs{.y_channels_first = true}>>(35, 8);
  check_convolutions<
      fmt::int8, fmt::int8_row, Biased,
      Products<fmt::int8, fmt::int8_row, Biased, MmaKnobs{.block_k = 64, .unit_x = 16},
               GatherKnobs{.unit = 1, .taps_innermost = true, .taps = Taps::zeros, .y_channels_first = true}>>(36, 8);
  check_convolutions<
      fmt::f16, fmt::q4_0, Biased,
      Products<fmt::f16, fmt::q4_0, Biased, MmaKnobs{.unit_w = 32}, GatherKnobs{.unit = 1, .y_channels_first = true}>>(
      37, 6);
}

TEST_CASE("conv: the matrix units on single precision", "[conv]") {
  using Whole = Epilogue<float, float, Act::silu, float>;
  using conv::GatherKnobs;
  using conv::Taps;
  using gemm::MmaKnobs;
  check_convolutions<fmt::f32, fmt::f32, Whole,
                     Products<fmt::f32, fmt::f32, Whole, MmaKnobs{.block_k = 32, .unit_x = 4}>>(51, 8);
  check_convolutions<
      fmt::f32, fmt::f32, Plain,
      Products<fmt::f32, fmt::f32, Plain, MmaKnobs{.block_k = 32, .stages = 2, .async_copy = false, .unit_x = 1},
               GatherKnobs{.unit = 1, .taps_innermost = true, .taps = Taps::zeros, .y_channels_first = true}>>(52, 10);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     Products<fmt::f32, fmt::f32, Plain, MmaKnobs{.async_copy = false, .unit_x = 2},
                              GatherKnobs{.unit = 2, .taps = Taps::table, .places = 9, .cached = true}>>(53, 8);
}

TEST_CASE("conv: the matrix units on channels that are no whole pieces, and on groups", "[conv]") {
  using Biased = Epilogue<float, float, Act::none>;
  using conv::GatherKnobs;
  using conv::Taps;
  using gemm::MmaKnobs;
  constexpr MmaKnobs one = {.stages = 3, .async_copy = false, .unit_x = 1}, two = {.async_copy = false, .unit_x = 2},
                     four = {.block_k = 32, .async_copy = false, .unit_x = 4};
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Products<fmt::bf16, fmt::bf16, Whole, one, GatherKnobs{.unit = 1, .taps = Taps::zeros}>>(41, 10);
  check_convolutions<fmt::f16, fmt::f16, Plain,
                     Products<fmt::f16, fmt::f16, Plain, two, GatherKnobs{.unit = 2, .taps = Taps::zeros}>>(42, 10);
  check_convolutions<fmt::f16, fmt::f16, Biased,
                     Products<fmt::f16, fmt::f16, Biased, four,
                              GatherKnobs{.unit = 4, .taps = Taps::table, .places = 9, .cached = true}>>(43, 8);
  check_convolutions<fmt::e4m3, fmt::e4m3, Plain,
                     Products<fmt::e4m3, fmt::e4m3, Plain, MmaKnobs{.block_k = 64, .async_copy = false, .unit_x = 4},
                              GatherKnobs{.unit = 4, .taps = Taps::zeros}>>(44, 8);
  check_convolutions<
      fmt::int8, fmt::int8_row, Biased,
      Products<fmt::int8, fmt::int8_row, Biased, MmaKnobs{.block_k = 128, .async_copy = false, .unit_x = 2},
               GatherKnobs{.unit = 2, .taps = Taps::table, .places = 9}>>(45, 8);
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Products<fmt::bf16, fmt::bf16, Whole, MmaKnobs{.split_k = 2}, GatherKnobs{.grouped = true}>>(46,
                                                                                                                  8);
  check_convolutions<
      fmt::bf16, fmt::bf16, Whole,
      Products<fmt::bf16, fmt::bf16, Whole, one,
               GatherKnobs{
                   .unit = 1, .taps_innermost = true, .taps = Taps::zeros, .y_channels_first = true, .grouped = true}>>(
      47, 10);
  check_convolutions<fmt::int8, fmt::int8_row, Biased,
                     Products<fmt::int8, fmt::int8_row, Biased, MmaKnobs{.block_k = 128, .unit_x = 16},
                              GatherKnobs{.y_channels_first = true, .grouped = true}>>(48, 8);
}

TEST_CASE("conv: pointwise ones by gemm's kernels", "[conv]") {
  using Biased = Epilogue<float, float, Act::none>;
  using gemm::WgmmaKnobs;
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     PointwiseWgmma<fmt::bf16, fmt::bf16, Whole, WgmmaKnobs{.block_m = 72, .warpgroups_n = 1}>>(31, 6);
  check_convolutions<
      fmt::f16, fmt::f16, Plain,
      PointwiseWgmma<fmt::f16, fmt::f16, Plain,
                     WgmmaKnobs{.block_m = 96, .warpgroups_n = 1, .stages = 2, .cluster = 2, .swapped = true}>>(32, 6);
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     PointwiseWgmma<fmt::bf16, fmt::bf16, Whole,
                                    WgmmaKnobs{.block_m = 24, .warpgroups_n = 1, .schedule = Schedule::stream_k}>>(33,
                                                                                                                   8);
  check_convolutions<
      fmt::int8, fmt::int8_row, Biased,
      PointwiseWgmma<fmt::int8, fmt::int8_row, Biased, WgmmaKnobs{.block_m = 64, .stages = 2, .cluster = 2}>>(34, 6);
  check_convolutions<fmt::e4m3, fmt::e4m3_row, Whole,
                     PointwiseWgmma<fmt::e4m3, fmt::e4m3_row, Whole,
                                    WgmmaKnobs{.block_m = 48, .cluster = 2, .schedule = Schedule::split_last_wave}>>(35,
                                                                                                                     6);

  static constexpr gemm::MmaKnobs kMma{.block_k = 32, .stages = 2, .async_copy = false, .unit_x = 4};
  check_convolutions<
      fmt::f16, fmt::f16, Whole,
      PointwiseGrid<fmt::f16, fmt::f16, gemm::Mma<fmt::f16, fmt::f16, Whole, kMma>, kMma.block_m, kMma.block_n>>(36, 8);
  static constexpr gemm::GemvKnobs kGemv{.tokens = 4, .unit = 4, .lanes = 8, .warps_k = 2, .staged_k = 128};
  check_convolutions<fmt::f32, fmt::f32, Biased,
                     PointwiseGrid<fmt::f32, fmt::f32, gemm::Gemv<fmt::f32, fmt::f32, Biased, kGemv>, kGemv.tokens,
                                   kGemv.block_rows()>>(37, 8);
}
