// SPDX-License-Identifier: Apache-2.0
// Convolutions in the emulator, against plain loops over an input that is padded element by element.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "emulator/gemm.h"
#include "operations/conv/cuda/reference.cuh"
#include "operations/pack/cuda/tiles.cuh"
#include "support/fake_quant.h"

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
    if (X::kBlock > 1) s.x_channels_first = 0, s.cache = 0, s.c /= s.groups, s.groups = 1;  // rows are pixels
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

// Values as a format keeps them.
template <class F>
std::vector<float> kept(std::vector<float> values, u8* bytes = nullptr) {
  std::vector<u8> own(bytes ? 0 : values.size() * F::kDataBytes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    u8* const at = (bytes ? bytes : own.data()) + i * F::kDataBytes;
    F::encode(&values[i], at, nullptr, 1.0f, 0);
    values[i] = F::decode(at, nullptr, 1.0f, 0);
  }
  return values;
}

// Inputs with every kind of trouble, each under a block's own scale where blocks begin with rows of `length` elements.
template <class X>
void trouble(Matrix<X>& x, i64 length, int block, float amax, unsigned seed) {
  const i64 all = static_cast<i64>(x.exact.size());
  for (i64 row = 0; row < all; row += length) {
    const std::vector<float> values =
        fake_quant_model::troubled(length, block, amax, seed + static_cast<unsigned>(row / length));
    std::copy(values.begin(), values.begin() + std::min(length, all - row), x.exact.begin() + row);
  }
  x.exact = kept<X>(x.exact, x.data.data());
}
// Rows that take one column of x each.
template <class W>
void make_one_hot(Matrix<W>& w) {
  std::fill(w.exact.begin(), w.exact.end(), 0.0f);
  for (i64 row = 0; row < w.rows; ++row) w.exact[static_cast<std::size_t>(row * w.cols + row % w.cols)] = 1;
  w.exact = kept<W>(w.exact, w.data.data());
}

// `amax`: of shapes that are fake quantized. `hard`: columns of a troubled x come out one by one, and exactly.
template <class X, class W, class Epi, class Kernel>
void check_shape(const Picked& p, unsigned seed, float amax = 3, bool hard = false) {
  const conv::Shape& s = p.shape;
  const Axis* axes = s.axes;
  const auto f = static_cast<std::size_t>(s.first_axis);
  const i64 plane = i64{axes[0].in} * axes[1].in * axes[2].in / axes[f].in, pixels = s.pixels(),
            outputs = s.n * pixels * s.k;
  const i64 fresh = axes[f].in - s.cache;
  Matrix<X> x(s.n * fresh * plane, s.c, s.c, seed + 1);
  const Matrix<X> cache(s.n * std::max(1, s.cache) * plane, s.c, s.c, seed + 2);
  Matrix<W> w(s.k, s.columns(), s.columns(), seed + 3);
  if constexpr (W::kBlock == 1 && !W::kRowScale) {
    if (hard) {
      trouble(x, s.x_channels_first ? s.c * fresh * plane : s.c, s.quant_block, amax, seed);
      make_one_hot(w);
    }
  }
  INFO("seed " << seed << " in " << axes[0].in << "x" << axes[1].in << "x" << axes[2].in << " cache " << s.cache
               << " out " << axes[0].out << "x" << axes[1].out << "x" << axes[2].out << " of " << s.n << ", " << s.c
               << " channels in " << s.groups << " groups, kernel " << axes[0].kernel << "x" << axes[1].kernel << "x"
               << axes[2].kernel << " stride " << axes[0].stride << "x" << axes[1].stride << "x" << axes[2].stride
               << " pad " << axes[0].lo << "x" << axes[1].lo << "x" << axes[2].lo << " dilation " << axes[0].dilation
               << "x" << axes[1].dilation << "x" << axes[2].dilation << " modes " << int(axes[0].pad)
               << int(axes[1].pad) << int(axes[2].pad) << " quantized " << s.quant_block << " channels "
               << s.quant_channels << " amax " << amax);
  using R = tw::select<Epi::kC, typename Epi::Residual, float>;
  std::vector<float> bias(static_cast<std::size_t>(s.k));
  std::vector<R> residual(static_cast<std::size_t>(outputs));
  for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = 0.125f * static_cast<float>(j % 9);
  for (std::size_t j = 0; j < residual.size(); ++j) residual[j] = from_f32<R>(0.25f * static_cast<float>(j % 7));
  using Y = typename Epi::Out;
  std::vector<Y> y(static_cast<std::size_t>(outputs));
  std::vector<float> oracle(2 * y.size());
  conv::Args args{x.operand(), w.operand(), y.data(), bias.data(), residual.data(), cache.data.data(), nullptr, 1, 1};
  if (s.quant_block) args.amax = &amax;
  Kernel::run(args, s, seed);
  conv::Args judged = args;
  judged.y = oracle.data();
  AnyShape<X, W, Epi>::template launch<conv::Reference<X, W, Epi, true>>(judged, s, seed);

  const i64 of_group = s.c / s.groups, taps = s.taps(), columns = s.columns();
  const double tensor = (X::kGlobal ? x.global : 1.0f) * (W::kGlobal ? w.global : 1.0f);
  // What an output pixel sees of a group, by channels and taps of each, or by taps and channels of each.
  const auto column = [&](bool channels_first, i64 c, i64 tap) {
    return static_cast<std::size_t>(channels_first ? c * taps + tap : tap * of_group + c);
  };
  const auto seen = [&](i64 image, i64 pixel, i64 group, bool channels_first) {
    std::vector<float> row(static_cast<std::size_t>(columns));
    const i64 o[3] = {pixel / axes[2].out / axes[1].out, pixel / axes[2].out % axes[1].out, pixel % axes[2].out};
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
      const i64 rows = f < 1 ? axes[1].in : f == 1 ? depth : 1, width = f < 2 ? axes[2].in : depth;
      const i64 place = (in[0] * rows + in[1]) * width + in[2];
      for (i64 c = 0; c < of_group; ++c) {
        const i64 from = group * of_group + c;
        const i64 at = s.x_channels_first ? (image * s.c + from) * depth * plane + place
                                          : (image * depth * plane + place) * s.c + from;
        row[column(channels_first, c, tap)] = (cached ? cache : x).exact[static_cast<std::size_t>(at)];
      }
    }
    return row;
  };
  // By w's columns, as it is multiplied.
  const auto multiplied = [&](i64 image, i64 pixel, i64 group) {
    if constexpr (X::kBlock == 1) {
      if (s.quant_block) {
        const bool along_channels = s.quant_channels != 0;
        const std::vector<float> quantized = kept<X>(fake_quant_model::fake_quantized(
            seen(image, pixel, group, !along_channels), along_channels ? of_group : columns, s.quant_block, amax));
        std::vector<float> row(quantized.size());
        for (i64 tap = 0; tap < taps; ++tap)
          for (i64 c = 0; c < of_group; ++c)
            row[column(s.w_channels_first != 0, c, tap)] = quantized[column(!along_channels, c, tap)];
        return row;
      }
    }
    return seen(image, pixel, group, s.w_channels_first != 0);
  };
  i64 wrong = 0;
  for (i64 image = 0; image < s.n; ++image)
    for (i64 pixel = 0; pixel < pixels; ++pixel) {
      std::vector<float> row;
      for (i64 channel = 0; channel < s.k; ++channel) {
        if (channel % (s.k / s.groups) == 0) row = multiplied(image, pixel, channel / (s.k / s.groups));
        double sum = 0, magnitude = 0;
        for (i64 i = 0; i < columns; ++i) {
          const double product = static_cast<double>(row[static_cast<std::size_t>(i)]) *
                                 w.exact[static_cast<std::size_t>(channel * columns + i)];
          sum += product, magnitude += std::fabs(product);
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
        // Single precision comes in two parts of 11 bits.
        if (hard) wrong += std::fabs(to_f32(y[at]) - expected) > (X::kDataBytes == 4 ? 1e-6 * std::fabs(expected) : 0);
      }
    }
  CHECK(wrong == 0);
}

template <class X, class W, class Epi, class Kernel = AnyShape<X, W, Epi>>
void check_convolutions(unsigned seed, int count) {
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i) {
    Picked p = pick_shape(random, Kernel::kLeastChannels);
    Kernel::fit(p);
    p.settle();
    INFO("shape " << i);
    check_shape<X, W, Epi, Kernel>(p, seed);
  }
}

using Plain = Epilogue<float, gemm::NoBias, Act::none>;
using Whole = Epilogue<bf16, float, Act::silu, float>;

// One output pixel for each image, which sees all of it in the order of memory: blocks are stretches of trouble.
inline Picked whole_images(int columns) {
  Picked p;
  conv::Shape& s = p.shape;
  s.n = 22, s.groups = 1, s.c = columns / 4, s.k = columns, s.first_axis = 1;
  s.axes[1].in = s.axes[1].kernel = s.axes[2].in = s.axes[2].kernel = 2;
  s.x_channels_first = s.w_channels_first = 1;
  return p;
}
// Pixels of their own for each tap.
inline Picked pixels_of_taps(int channels, int taps) {
  Picked p;
  conv::Shape& s = p.shape;
  s.n = 2, s.groups = 1, s.c = channels, s.k = taps * channels, s.first_axis = 2;
  s.axes[2].in = 11 * taps, s.axes[2].kernel = s.axes[2].stride = taps;
  return p;
}

// Every kind of trouble under several largest magnitudes. No value is beyond those of the formats.
template <class X, class W, class Kernel>
void check_exactly(Picked p, int block, bool along_channels) {
  conv::Shape& s = p.shape;
  s.alpha = kAlpha, s.beta = kBeta, s.y_factor = 1;
  s.quant_block = block, s.quant_channels = along_channels;
  p.settle();
  unsigned seed = 3;
  for (const float amax : {2688.0f, 3.0f, 1e-10f, 30000.0f, 0.0f, fake_quant_model::kNan})
    check_shape<X, W, Plain, Kernel>(p, ++seed, amax, true);
}

}  // namespace conv_test
