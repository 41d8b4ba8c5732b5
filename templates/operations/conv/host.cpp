// SPDX-License-Identifier: Apache-2.0
// A conv on the host: plain single precision in the place of a kernel, and the fp64 oracle of `tilewright run`. Both
// decode operands by their formats' scalar codecs and know no kernel.
#include <tilewright/numerics.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/threads.h"
#include "templates/common/describe.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"
#include "templates/operations/gemm/error_bound.cuh"
#include "templates/operations/gemm/judge.h"

namespace tilewright::conv {
namespace {

constexpr double kMostMacs = 2e9;  // of one check: a few seconds on two cores

// The outputs that are computed and checked: all, or an even spread with the first and last.
struct Sample {
  std::vector<std::int64_t> pixels, channels;  // pixels: of all images
  std::int64_t size() const { return static_cast<std::int64_t>(pixels.size() * channels.size()); }
};

Sample choose_sample(const Gemm& g) {
  const double outputs = std::max(64.0, kMostMacs / static_cast<double>(g.k));
  if (static_cast<double>(g.m) * static_cast<double>(g.n) <= outputs)
    return {gemm::spread(g.m, g.m), gemm::spread(g.n, g.n)};
  Sample s;
  s.channels = gemm::spread(g.n, 16);
  s.pixels = gemm::spread(g.m, static_cast<std::int64_t>(outputs / static_cast<double>(s.channels.size())));
  return s;
}

struct Operands {
  Gemm gemm;
  tw::conv::Shape shape;
  std::vector<float> x, w, bias, residual, cache;
  std::vector<float> slack;  // how far from w a correct kernel's weight may be; empty: not at all
  float amax = 0;

  Operands(const Conv& c, const Task& task, std::span<const std::span<std::byte>> buffers)
      : gemm(as_gemm(c)),
        shape(shape_of(c)),
        x(decoded(matrix(task, "x"), buffers)),
        w(decoded(matrix(task, "w"), buffers)) {
    slack = gemm::slack_of_weights(gemm, matrix(task, "w"), w, buffers);
    // Kernels that write w to the workspace round it once.
    const double rounding = c.packing == Packing::none && c.workspace > 0 ? written_rounding(c.w, c.x).value_or(0) : 0;
    for (std::size_t i = 0; rounding > 0 && i < w.size(); ++i)
      slack.push_back(static_cast<float>(rounding) * std::fabs(w[i]));
    if (c.bias) bias = decoded(matrix(task, "bias"), buffers);
    if (c.residual) residual = decoded(matrix(task, "residual"), buffers);
    if (c.cache) cache = decoded(matrix(task, "cache"), buffers);
    if (c.quant_act.block) amax = *static_cast<const float*>(operand(matrix(task, "amax"), buffers).data);
  }
  std::int64_t output_at(std::int64_t pixel, std::int64_t channel) const {
    return tw::conv::element_at(shape.y_channels_first, pixel / shape.pixels(), channel, shape.k,
                                pixel % shape.pixels(), shape.pixels());
  }
  double bias_at(std::int64_t channel) const { return bias.empty() ? 0 : bias[static_cast<std::size_t>(channel)]; }
  double residual_at(std::int64_t output) const {
    return residual.empty() ? 0 : static_cast<double>(shape.beta) * residual[static_cast<std::size_t>(output)];
  }

  // The column of a group's channel at a tap, of w or in another order.
  std::int64_t column(bool channels_first, std::int64_t c, std::int64_t tap) const {
    return channels_first ? c * shape.taps() + tap : tap * (shape.c / shape.groups) + c;
  }
  std::int64_t column_of_w(std::int64_t c, std::int64_t tap) const {
    return column(shape.w_channels_first != 0, c, tap);
  }

  // visit(channel of the group, tap, element of x) for all that an output pixel sees, without zero padding.
  template <class Visit>
  void for_elements(std::int64_t pixel, std::int64_t group, const Visit& visit) const {
    const tw::conv::Axis* axes = shape.axes;
    const std::int64_t image = pixel / shape.pixels(), of_group = shape.c / shape.groups, first = group * of_group,
                       taps = shape.taps();
    std::int32_t at[3];
    for (std::int64_t a = 2, rest = pixel % shape.pixels(); a >= 0; --a)
      at[a] = static_cast<std::int32_t>(rest % axes[a].out), rest /= axes[a].out;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const auto s = static_cast<std::int32_t>(tap % axes[2].kernel),
                 r = static_cast<std::int32_t>(tap / axes[2].kernel % axes[1].kernel),
                 t = static_cast<std::int32_t>(tap / axes[2].kernel / axes[1].kernel);
      const std::int32_t in0 = source_of(axes[0], at[0], t), in1 = source_of(axes[1], at[1], r),
                         in2 = source_of(axes[2], at[2], s);
      if (in0 < 0 || in1 < 0 || in2 < 0) continue;
      const tw::conv::Source source = source_at(shape, in0, in1, in2);
      const std::vector<float>& from = source.cached ? cache : x;
      for (std::int64_t c = 0; c < of_group; ++c)
        visit(c, tap,
              from[static_cast<std::size_t>(tw::conv::element_at(shape.x_channels_first, image, first + c, shape.c,
                                                                 source.pixel, source.pixels))]);
    }
  }

  // The same elements fake quantized, by w's columns; zero padding is zeros.
  std::vector<float> quantized(std::int64_t pixel, std::int64_t group) const {
    const std::int64_t columns = shape.columns(), length = shape.quant_channels ? shape.c / shape.groups : columns;
    const auto own = [&](std::int64_t c, std::int64_t tap) {
      return static_cast<std::size_t>(column(!shape.quant_channels, c, tap));
    };
    std::vector<float> row(static_cast<std::size_t>(columns)), by_w = row;
    for_elements(pixel, group, [&](std::int64_t c, std::int64_t tap, float v) { row[own(c, tap)] = v; });
    for (float* run = row.data(); run != row.data() + columns; run += length)
      fp4_fake_quant::fake_quantize_run(run, run, length, shape.quant_block, &amax);
    row = through(gemm.x, 1, columns, row);
    for_elements(pixel, group, [&](std::int64_t c, std::int64_t tap, float) {
      by_w[static_cast<std::size_t>(column_of_w(c, tap))] = row[own(c, tap)];
    });
    return by_w;
  }
};

// The products of an output pixel, for one output channel after another.
class Products {
 public:
  Products(const Operands& operands, std::int64_t pixel) : o_(operands), pixel_(pixel) {}

  // visit(element of x, the weight's place in w) for every product.
  template <class Visit>
  void of(std::int64_t channel, const Visit& visit) {
    const std::int64_t group = channel / (o_.shape.k / o_.shape.groups);
    const std::int64_t row = channel * o_.shape.columns();
    if (o_.shape.quant_block == 0) {
      o_.for_elements(pixel_, group, [&](std::int64_t c, std::int64_t tap, float v) {
        visit(v, static_cast<std::size_t>(row + o_.column_of_w(c, tap)));
      });
      return;
    }
    if (group != group_) x_ = o_.quantized(pixel_, group), group_ = group;
    for (std::size_t i = 0; i < x_.size(); ++i) visit(x_[i], static_cast<std::size_t>(row) + i);
  }

 private:
  const Operands& o_;
  std::int64_t pixel_, group_ = -1;
  std::vector<float> x_;  // of that group, quantized
};

Expected expected_at(const Operands& o, Products& products, std::int64_t pixel, std::int64_t channel) {
  GemmSums sums;
  products.of(channel, [&](float x, std::size_t w) {
    const double product = static_cast<double>(x) * o.w[w];
    sums.product += product, sums.magnitude += std::fabs(product);
    if (!o.slack.empty()) sums.rounding += std::fabs(x) * o.slack[w];
  });
  if (single_precision(o.gemm.x, o.gemm.w))
    sums.rounding = sums.magnitude * tw::gemm::single_rounding(o.shape.fast != 0);
  sums.scale = o.shape.alpha;
  sums.bias = o.bias_at(channel);
  sums.residual = o.residual_at(o.output_at(pixel, channel));
  return gemm_expected(o.gemm, sums);
}

}  // namespace

void run_on_host(const Conv& conv, const Task& task, std::span<const std::span<std::byte>> buffers) {
  const Operands o(conv, task, buffers);
  const Sample sample = choose_sample(o.gemm);
  const auto element = static_cast<std::size_t>(conv.y.stream_bytes(0, 1, 1));
  std::byte* out = static_cast<std::byte*>(operand(matrix(task, "y"), buffers).data);
  parallel(0, sample.pixels.size(), [&](std::size_t i) {
    Products products(o, sample.pixels[i]);
    for (const std::int64_t channel : sample.channels) {
      float lanes[8] = {};  // short chains of additions, as in a kernel
      int lane = 0;
      products.of(channel, [&](float x, std::size_t w) { lanes[lane++ % 8] += x * o.w[w]; });
      const float sum =
          ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
      const std::int64_t at = o.output_at(sample.pixels[i], channel);
      const double linear = o.shape.alpha * sum + static_cast<float>(o.bias_at(channel));
      const auto value = static_cast<float>((activate(conv.act, linear) + o.residual_at(at)) / conv.y_scale);
      conv.y.info().encode(&value, 1, 1, {out + static_cast<std::size_t>(at) * element, nullptr, nullptr}, 0);
    }
  });
}

HostCheck check_on_host(const Conv& conv, const Task& task, std::span<const std::span<std::byte>> buffers) {
  const Operands o(conv, task, buffers);
  const Sample sample = choose_sample(o.gemm);
  const std::vector<float> y = decoded(matrix(task, "y"), buffers);
  std::vector<Expected> expected(static_cast<std::size_t>(sample.size()));
  const std::size_t channels = sample.channels.size();
  parallel(0, sample.pixels.size(), [&](std::size_t i) {
    Products products(o, sample.pixels[i]);
    for (std::size_t c = 0; c < channels; ++c)
      expected[i * channels + c] = expected_at(o, products, sample.pixels[i], sample.channels[c]);
  });
  gemm::Tally tally(conv.y);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t pixel = sample.pixels[i / channels], channel = sample.channels[i % channels];
    tally.add(pixel, channel, y[static_cast<std::size_t>(o.output_at(pixel, channel))], expected[i]);
  }
  tally.check.outputs = o.gemm.m * o.gemm.n;
  return tally.check;
}

}  // namespace tilewright::conv
