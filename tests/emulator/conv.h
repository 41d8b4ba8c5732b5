// SPDX-License-Identifier: Apache-2.0
// Convolutions in the emulator, against plain loops over an input that is padded element by element.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "conv/reference.cuh"
#include "emulator/gemm.h"
#include "pack/tiles.cuh"

namespace conv_test {

using namespace gemm_test;
using conv::Axis;
using conv::Pad;

inline constexpr float kAlpha = 0.75f, kBeta = -0.5f;

// Which element of an axis each of the padded ones is; -1: none.
inline std::vector<int> padded(const Axis& a, int hi) {
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

inline Picked pick_shape(std::mt19937& random, int channel_step) {
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

// w as tiles, if it is to be.
template <class X, class W, bool packed>
struct PackedWeights {};
template <class X, class W>
struct PackedWeights<X, W, true> {
  using Element = tile_element<X, W>;
  using Tile = typename W::template Tile<Element>;
  using Pack = pack::Tiles<W, Element, false>;
  std::vector<u32> codes, scales;
  Operand pack(const Operand& w, i64 rows, i64 columns, std::uint64_t seed) {
    const i64 chunks = Tile::kScaleBytes ? ceil_div64(columns, max2(1, Tile::kScaleK)) : 0;
    codes.resize(static_cast<std::size_t>(rows * columns * Tile::kBits / 32));
    scales.resize(
        static_cast<std::size_t>(rows * std::max(chunks * Tile::kScaleBytes, i64{fmt::row_bytes<W>()}) / 4 + 1));
    const auto writable = [](const void* p) { return const_cast<void*>(p); };
    const pack::Args args{{writable(w.data), writable(w.scales), nullptr}, {codes.data(), scales.data(), nullptr}};
    const pack::Shape shape{rows, columns};
    emu::run({{static_cast<u32>(Pack::tiles(shape)), 1, 1}, Pack::kThreads, 1, 0, seed},
             [&] { Pack::run(args, shape); });
    return {codes.data(), scales.data(), w.global};
  }
};

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

}  // namespace conv_test
