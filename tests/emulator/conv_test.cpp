// SPDX-License-Identifier: Apache-2.0
// Convolutions in the emulator, against plain loops over an input that is padded element by element.
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "conv/direct/kernel.cuh"
#include "conv/mma.cuh"
#include "conv/pointwise.cuh"
#include "conv/reference.cuh"
#include "conv/wgmma/kernel.cuh"
#include "emulator/gemm.h"
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int8.cuh"
#include "formats/int8_row.cuh"
#include "formats/int8_tensor.cuh"
#include "formats/q4_0.cuh"

using namespace gemm_test;
using conv::Axis;
using conv::Pad;

namespace {

constexpr float kAlpha = 0.75f, kBeta = -0.5f;

// Which element of an axis each of the padded ones is; -1: none.
std::vector<int> padded(const Axis& a, int hi) {
  std::vector<int> from(static_cast<std::size_t>(a.in));
  for (int i = 0; i < a.in; ++i) from[static_cast<std::size_t>(i)] = i;
  for (int i = 1; i <= a.lo; ++i) from.insert(from.begin(), a.pad == Pad::zero ? -1 : a.pad == Pad::reflect ? i : 0);
  for (int i = 1; i <= hi; ++i)
    from.push_back(a.pad == Pad::zero ? -1 : a.pad == Pad::reflect ? a.in - 1 - i : a.in - 1);
  return from;
}

struct Picked {
  conv::Shape shape{};
  int hi[3] = {};                        // padding behind each axis
  std::array<std::vector<int>, 3> from;  // which element each of the padded ones is

  // Makes the shape legal, and the rest of it follow.
  void settle() {
    for (std::size_t i = 0; i < 3; ++i) {
      Axis& a = shape.axes[i];
      const int reach = a.dilation * (a.kernel - 1) + 1;
      if (a.in + a.lo + hi[i] < reach) a.pad = Pad::zero, hi[i] = reach - a.in - a.lo;
      a.out = (a.in + a.lo + hi[i] - reach) / a.stride + 1;
      from[i] = padded(a, hi[i]);
    }
    const Axis& first = shape.axes[shape.first_axis];
    shape.cache = std::min({shape.cache, first.in - 1, (first.kernel - 1) * first.dilation});
    shape.gemm_m = shape.n * shape.pixels(), shape.gemm_n = shape.k, shape.gemm_k = shape.columns();
  }
};

Picked pick_shape(std::mt19937& random, int channel_step) {
  const auto of = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  };
  Picked p;
  conv::Shape& s = p.shape;
  s.n = of(1, 2), s.groups = of(1, 3), s.c = s.groups * channel_step * of(1, 2), s.k = s.groups * of(1, 7);
  const int rank = of(1, 3);
  for (int i = 3 - rank; i < 3; ++i) {
    Axis& a = s.axes[i];
    a.in = of(2, 6), a.kernel = of(1, 3), a.stride = of(1, 3), a.dilation = of(1, 2), a.lo = of(0, a.in - 1);
    a.pad = static_cast<Pad>(of(0, 2));
    p.hi[i] = of(0, a.in - 1);
  }
  s.first_axis = 3 - rank, s.cache = of(0, 4);
  s.x_channels_first = of(0, 1), s.y_channels_first = of(0, 1), s.w_channels_first = of(0, 1);
  s.alpha = kAlpha, s.beta = kBeta, s.y_factor = 1;
  return p;
}

// The reference kernel takes any shape.
template <class X, class W, class Epi>
struct AnyShape {
  static constexpr int kLeastChannels = W::kBlock;
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    if (W::kBlock > 1) s.w_channels_first = 0;
  }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    launch<conv::Reference<X, W, Epi, false>>(args, s, seed);
  }
  template <class Plan>
  static void launch(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
    const u32 blocks = static_cast<u32>(ceil_div64(s.n * s.pixels(), Plan::kPixels) * ceil_div64(s.k, Plan::kChannels));
    emu::run({{blocks, 1, 1}, Plan::kThreads, 1, 0, seed}, [&] { Plan::run(args, s); });
  }
};
// The matrix units' takes any layout; how it gathers x says which.
template <class X, class W, class Epi, gemm::MmaKnobs knobs, conv::GatherKnobs gather = conv::GatherKnobs{}>
struct Products {
  static constexpr int kPiece = 16 / sizeof(gemm::element_of<X>);
  // Rows of w are whole pieces where these are copied asynchronously, else of any width that unit_x divides.
  static constexpr int kLeastChannels =
      std::max<int>(gather.unit == 0 || (knobs.async_copy && !W::kCodes) ? kPiece : 3 * gather.unit, W::kBlock);
  static void fit(Picked& p) {
    conv::Shape& s = p.shape;
    if (!gather.grouped) s.c /= s.groups, s.k = std::max(s.k, 5), s.groups = 1;
    if (gather.unit != 1) s.x_channels_first = 0;
    s.w_channels_first = gather.taps_innermost, s.y_channels_first = gather.y_channels_first;
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
    s.c = wanted.channels, s.k = 8 * s.k + (wanted.swapped ? 3 : 0), s.groups = 1;
    if (!wanted.writes) s.x_channels_first = s.w_channels_first = 0;
    s.y_channels_first = wanted.channels_first, s.fast = !same<As, X>();
    if ((wanted.box_d > 1 && !wanted.writes) || s.first_axis > 0) s.cache = 0;
    for (int a = 0; a < 3; ++a) {
      Axis& axis = s.axes[a];
      if (a > 0 || wanted.box_d > 1 || wanted.skips) axis.pad = Pad::zero;
      if (a == 1 && wanted.halo) {
        axis.stride = 1, axis.kernel = wanted.kernel_h, axis.dilation = wanted.dilation_h;
      }
    }
  }
  static void run(const conv::Args& args, const conv::Shape& s, std::uint64_t seed) {
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
             [&] { Plan::run(own, s, &pixels, &filters, &cached); });
    CHECK(std::all_of(written, written + gemm::kScheduleBytes, [](u8 b) { return b == 0; }));
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
      return emu::tensor_map(
          data, kBytes, static_cast<u64>(s.c), static_cast<u64>(rows), static_cast<u64>(s.c * kBytes), kPanel,
          columns ? Gemm::kBoxRows : std::min(Gemm::kBlockN, 256), 128, columns ? Gemm::kPanelBoxes : Gemm::kPanels);
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

template <class X, class W, class Epi, class Kernel = AnyShape<X, W, Epi>>
void check_convolutions(unsigned seed, int count) {
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i) {
    Picked p = pick_shape(random, Kernel::kLeastChannels);
    conv::Shape& s = p.shape;
    Kernel::fit(p);
    p.settle();
    const Axis* axes = s.axes;
    const auto f = static_cast<std::size_t>(s.first_axis);
    const i64 plane = i64{axes[0].in} * axes[1].in * axes[2].in / axes[f].in, pixels = s.pixels(),
              outputs = s.n * pixels * s.k;
    const i64 fresh = axes[f].in - s.cache;
    const Matrix<X> x(s.n * fresh * plane, s.c, s.c, seed + 1),
        cache(s.n * std::max(1, s.cache) * plane, s.c, s.c, seed + 2);
    const Matrix<W> w(s.k, s.columns(), s.columns(), seed + 3);
    INFO("seed " << seed << " shape " << i << " in " << axes[0].in << "x" << axes[1].in << "x" << axes[2].in
                 << " cache " << s.cache << " out " << axes[0].out << "x" << axes[1].out << "x" << axes[2].out << " of "
                 << s.n << ", kernel " << axes[0].kernel << "x" << axes[1].kernel << "x" << axes[2].kernel << " stride "
                 << axes[0].stride << "x" << axes[1].stride << "x" << axes[2].stride << " pad " << axes[0].lo << "x"
                 << axes[1].lo << "x" << axes[2].lo << " dilation " << axes[0].dilation << "x" << axes[1].dilation
                 << "x" << axes[2].dilation << " modes " << int(axes[0].pad) << int(axes[1].pad) << int(axes[2].pad));
    using R = tw::select<Epi::kC, typename Epi::Residual, float>;
    std::vector<float> bias(static_cast<std::size_t>(s.k));
    std::vector<R> residual(static_cast<std::size_t>(outputs));
    for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = 0.125f * static_cast<float>(j % 9);
    for (std::size_t j = 0; j < residual.size(); ++j) residual[j] = from_f32<R>(0.25f * static_cast<float>(j % 7));
    using Y = typename Epi::Out;
    std::vector<Y> y(static_cast<std::size_t>(outputs));
    std::vector<float> oracle(2 * y.size());
    conv::Args args{x.operand(), w.operand(), y.data(), bias.data(), residual.data(), cache.data.data(), nullptr, 1, 1};
    Kernel::run(args, s, seed);
    conv::Args judged = args;
    judged.y = oracle.data();
    AnyShape<X, W, Epi>::template launch<conv::Reference<X, W, Epi, true>>(judged, s, seed);

    const i64 of_group = s.c / s.groups, taps = s.taps();
    const double tensor = (X::kGlobal ? x.global : 1.0f) * (W::kGlobal ? w.global : 1.0f);
    i64 wrong = 0;
    for (i64 image = 0; image < s.n; ++image)
      for (i64 channel = 0; channel < s.k; ++channel)
        for (i64 pixel = 0; pixel < pixels; ++pixel) {
          const i64 o[3] = {pixel / axes[2].out / axes[1].out, pixel / axes[2].out % axes[1].out, pixel % axes[2].out};
          double sum = 0, magnitude = 0;
          for (i64 tap = 0; tap < taps; ++tap) {
            const i64 t[3] = {tap / axes[2].kernel / axes[1].kernel, tap / axes[2].kernel % axes[1].kernel,
                              tap % axes[2].kernel};
            int in[3];
            for (std::size_t a = 0; a < 3; ++a)
              in[a] = p.from[a].at(static_cast<std::size_t>(o[a] * axes[a].stride + t[a] * axes[a].dilation));
            if (in[0] < 0 || in[1] < 0 || in[2] < 0) continue;
            const bool cached = in[f] < s.cache;
            if (!cached) in[f] -= s.cache;
            const i64 depth = cached ? s.cache : fresh;
            const i64 rows = f < 1 ? axes[1].in : f == 1 ? depth : 1, columns = f < 2 ? axes[2].in : depth;
            const i64 place = (in[0] * rows + in[1]) * columns + in[2];
            for (i64 c = 0; c < of_group; ++c) {
              const i64 from = channel / (s.k / s.groups) * of_group + c;
              const i64 at = s.x_channels_first ? (image * s.c + from) * depth * plane + place
                                                : (image * depth * plane + place) * s.c + from;
              const i64 column = s.w_channels_first ? c * taps + tap : tap * of_group + c;
              const double product = static_cast<double>((cached ? cache : x).exact[static_cast<std::size_t>(at)]) *
                                     w.exact[static_cast<std::size_t>(channel * s.columns() + column)];
              sum += product, magnitude += std::fabs(product);
            }
          }
          const auto at = static_cast<std::size_t>(s.y_channels_first ? (image * s.k + channel) * pixels + pixel
                                                                      : (image * pixels + pixel) * s.k + channel);
          double expected = gemm::activate<Epi::activation()>(
              sum * tensor * kAlpha + (Epi::kBias ? bias[static_cast<std::size_t>(channel)] : 0.0f));
          if constexpr (Epi::kC) expected += kBeta * static_cast<double>(to_f32(residual[at]));
          const double bound = oracle[at + y.size()];
          // The oracle's own additions are in double precision.
          wrong += !(std::fabs(oracle[at] - expected) <= 1e-6 * std::fabs(expected) + 1e-6 * bound + 1e-30);
          wrong += !(std::fabs(to_f32(y[at]) - expected) <= bound);
          const double share = sizeof(Y) == 1 ? 0.07 : 0.05;
          wrong += !(bound <= share * std::fabs(expected) + 0.01 * magnitude * tensor + 0.01);  // it says something
        }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("conv: the reference, every pad mode, layout, stride, dilation, group and cache", "[conv]") {
  check_convolutions<fmt::f32, fmt::f32, Epilogue<float, gemm::NoBias, Act::none>>(1, 40);
  check_convolutions<fmt::bf16, fmt::bf16, Epilogue<bf16, float, Act::silu, float>>(2, 30);
  check_convolutions<fmt::int8, fmt::int8_row, Epilogue<float, float, Act::none>>(3, 20);
  check_convolutions<fmt::e4m3, fmt::e4m3, Epilogue<f16, gemm::NoBias, Act::relu, float>>(4, 20);
  check_convolutions<fmt::f16, fmt::q4_0, Epilogue<float, float, Act::none>>(5, 15);
}

TEST_CASE("conv: the matrix units on gathered input", "[conv]") {
  using Plain = Epilogue<float, gemm::NoBias, Act::none>;
  using Whole = Epilogue<bf16, float, Act::silu, float>;
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
}

TEST_CASE("conv: the matrix units on PyTorch's layouts", "[conv]") {
  using Plain = Epilogue<float, gemm::NoBias, Act::none>;
  using Whole = Epilogue<bf16, float, Act::silu, float>;
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
  using Plain = Epilogue<float, gemm::NoBias, Act::none>;
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
  using Plain = Epilogue<float, gemm::NoBias, Act::none>;
  using Whole = Epilogue<bf16, float, Act::silu, float>;
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

TEST_CASE("conv: pointwise ones by gemm's kernels", "[conv]") {
  using Plain = Epilogue<float, gemm::NoBias, Act::none>;
  using Whole = Epilogue<bf16, float, Act::silu, float>;
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

TEST_CASE("conv: tiles of pixels without matrix units", "[conv]") {
  using Plain = Epilogue<float, gemm::NoBias, Act::none>;
  using Whole = Epilogue<bf16, float, Act::silu, float>;
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
