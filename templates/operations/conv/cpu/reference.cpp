// SPDX-License-Identifier: Apache-2.0
// A conv on the CPU by its formats' scalar codecs, in double precision: the last resort where no other kernel is legal,
// and the oracle that candidates are held against. A function of the library, as the gemm's (reference.cpp).
#include <tilewright/conv.h>
#include <tilewright/numerics.h>
#include <tilewright/source.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "templates/backends/cpu/panels.h"
#include "templates/backends/cpu/reference_family.h"
#include "templates/backends/cpu/rows.h"
#include "templates/common/describe.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cpu/conv.h"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"

namespace tilewright::cpu {
namespace {

// Of a block. Each pixel's columns are gathered once for its channels, each row of w is decoded once for its pixels.
constexpr std::int64_t kPixels = 16, kChannels = 64;
constexpr int kTogether = 4;  // channels, since additions of one sum wait for each other

float decoded_at(Format f, const void* tensor, std::int64_t element, const float* global = nullptr) {
  float value = 0;
  f.info().decode({static_cast<const std::byte*>(tensor) + element * f.stream_bytes(0, 1, 1), nullptr, global}, 1, 1,
                  &value);
  return value;
}

// A launch. Columns are counted tap by tap here, channels of a group innermost, in whatever order tensors are.
class Launch {
 public:
  Launch(const Conv& conv, const ConvArgs& args)
      : conv_(conv), args_(args), gemm_(conv::as_gemm(conv)), shape_(conv::shape_of(conv)) {
    // Codecs multiply by a tensor-wide scale.
    const auto inverse = [&](const float*& global, float& of) {
      if (global && conv.global == Global::div) of = 1.0f / *global, global = &of;
    };
    inverse(args_.x.global, x_inverse_);
    inverse(args_.w.global, w_inverse_);
    alpha_ = static_cast<double>(shape_.alpha * args.alpha);
    beta_ = static_cast<double>(shape_.beta * args.beta);
  }
  Launch(const Launch&) = delete;

  void compute(std::int64_t block, bool oracle) const {
    const std::int64_t blocks = (gemm_.n + kChannels - 1) / kChannels;
    const std::int64_t first = block / blocks * kPixels, pixels = std::min(kPixels, gemm_.m - first),
                       begin = block % blocks * kChannels, end = std::min(gemm_.n, begin + kChannels),
                       of_group = gemm_.n / shape_.groups;
    std::vector<Seen> seen(static_cast<std::size_t>(std::max<std::int64_t>(pixels, 0)));
    std::vector<float> rows(static_cast<std::size_t>(kTogether * gemm_.k));
    std::int64_t gathered = -1;
    for (std::int64_t channel = begin; channel < end;) {
      const std::int64_t group = channel / of_group,
                         count = std::min<std::int64_t>({kTogether, end - channel, (group + 1) * of_group - channel});
      decode_weights(channel, count, rows.data());
      for (std::size_t p = 0; p < seen.size(); ++p) {
        const std::int64_t pixel = first + static_cast<std::int64_t>(p);
        if (group != gathered) gather(pixel, group, seen[p]);
        double products[kTogether] = {}, magnitudes[kTogether] = {};
        sum(seen[p], rows.data(), count, products, magnitudes);
        for (std::int64_t i = 0; i < count; ++i) finish(pixel, channel + i, products[i], magnitudes[i], oracle);
      }
      gathered = group, channel += count;
    }
  }

 private:
  // What an output pixel sees of a group.
  struct Seen {
    std::vector<float> columns;
    std::vector<char> taps;  // 0: zero padding, which takes no part
  };

  std::int64_t channels() const { return shape_.c / shape_.groups; }

  // Up to kTogether channels, which a panel has all.
  void decode_weights(std::int64_t first, std::int64_t count, float* out) const {
    static_assert(kPanel % kTogether == 0 && kChannels % kTogether == 0);
    if (conv_.packing != Packing::panels) {
      for (std::int64_t i = 0; i < count; ++i) decode_row(first + i, out + i * gemm_.k);
      return;
    }
    const HostStreams plain(conv_.w, kPanel, gemm_.k);
    const std::byte* const panel =
        static_cast<const std::byte*>(args_.w.data) + first / kPanel * panel_bytes(conv_.w, gemm_.k);
    unpack_panels(conv_.w, gemm_.k, 0, 1, panel, plain.operand);
    for (std::int64_t i = 0; i < count; ++i)
      conv_.w.info().decode(from_row(conv_.w, plain.operand, first % kPanel + i, gemm_.k), 1, gemm_.k,
                            out + i * gemm_.k);
  }
  void decode_row(std::int64_t channel, float* out) const {
    const Operand row = from_row(conv_.w, args_.w, channel, gemm_.k);
    if (!shape_.w_channels_first) return conv_.w.info().decode(row, 1, gemm_.k, out);
    std::vector<float> stored(static_cast<std::size_t>(gemm_.k));
    conv_.w.info().decode(row, 1, gemm_.k, stored.data());
    for (std::int64_t tap = 0; tap < shape_.taps(); ++tap)
      for (std::int64_t c = 0; c < channels(); ++c)
        out[tap * channels() + c] = stored[static_cast<std::size_t>(c * shape_.taps() + tap)];
  }

  void gather(std::int64_t pixel, std::int64_t group, Seen& seen) const {
    const tw::conv::Axis* axes = shape_.axes;
    const std::int64_t image = pixel / shape_.pixels(), taps = shape_.taps();
    std::int32_t at[3];
    for (std::int64_t a = 2, rest = pixel % shape_.pixels(); a >= 0; --a)
      at[a] = static_cast<std::int32_t>(rest % axes[a].out), rest /= axes[a].out;
    seen.columns.assign(static_cast<std::size_t>(gemm_.k), 0.0f);
    seen.taps.assign(static_cast<std::size_t>(taps), 0);
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const auto s = static_cast<std::int32_t>(tap % axes[2].kernel),
                 r = static_cast<std::int32_t>(tap / axes[2].kernel % axes[1].kernel),
                 t = static_cast<std::int32_t>(tap / axes[2].kernel / axes[1].kernel);
      const std::int32_t z = source_of(axes[0], at[0], t), y = source_of(axes[1], at[1], r),
                         x = source_of(axes[2], at[2], s);
      if (z < 0 || y < 0 || x < 0) continue;
      seen.taps[static_cast<std::size_t>(tap)] = 1;
      decode_channels(image, source_at(shape_, z, y, x), group * channels(), seen.columns.data() + tap * channels());
    }
    if (shape_.quant_block) fake_quantize(seen.columns);
  }

  void decode_channels(std::int64_t image, const tw::conv::Source& source, std::int64_t first, float* out) const {
    Operand x = args_.x;
    if (source.cached) x = {args_.cache, nullptr, args_.x.global};  // one tensor with x
    if (shape_.x_channels_first) {
      for (std::int64_t c = 0; c < channels(); ++c)
        out[c] = decoded_at(conv_.x, x.data,
                            tw::conv::element_at(1, image, first + c, shape_.c, source.pixel, source.pixels), x.global);
      return;
    }
    x = from_row(conv_.x, x, image * source.pixels + source.pixel, shape_.c);
    // Formats with blocks have one group.
    x.data = static_cast<const std::byte*>(x.data) + conv_.x.stream_bytes(0, 1, first);
    conv_.x.info().decode(x, 1, channels(), out);
  }

  void fake_quantize(std::vector<float>& columns) const {
    const std::int64_t taps = shape_.taps(), length = shape_.quant_channels ? channels() : gemm_.k;
    // Blocks lie in w's columns, or with `ctrs` through all taps of a channel first.
    const auto place = [&](std::int64_t c, std::int64_t tap) {
      return static_cast<std::size_t>(shape_.quant_channels ? tap * channels() + c : c * taps + tap);
    };
    std::vector<float> row(columns.size());
    for (std::int64_t tap = 0; tap < taps; ++tap)
      for (std::int64_t c = 0; c < channels(); ++c)
        row[place(c, tap)] = columns[static_cast<std::size_t>(tap * channels() + c)];
    for (float* run = row.data(); run != row.data() + gemm_.k; run += length)
      fp4_fake_quant::fake_quantize_run(run, run, length, shape_.quant_block, args_.amax);
    row = through(conv_.x, 1, gemm_.k, row);
    for (std::int64_t tap = 0; tap < taps; ++tap)
      for (std::int64_t c = 0; c < channels(); ++c)
        columns[static_cast<std::size_t>(tap * channels() + c)] = row[place(c, tap)];
  }

  void sum(const Seen& seen, const float* rows, std::int64_t count, double* products, double* magnitudes) const {
    const float* w[kTogether];
    for (std::int64_t i = 0; i < kTogether; ++i) w[i] = rows + std::min(i, count - 1) * gemm_.k;
    for (std::int64_t tap = 0; tap < shape_.taps(); ++tap) {
      if (!seen.taps[static_cast<std::size_t>(tap)]) continue;
      for (std::int64_t j = tap * channels(); j < (tap + 1) * channels(); ++j)
        for (int i = 0; i < kTogether; ++i) {
          const double product = static_cast<double>(seen.columns[static_cast<std::size_t>(j)]) * w[i][j];
          products[i] += product, magnitudes[i] += std::fabs(product);
        }
    }
  }

  // oracle: stores a value and a bound in the place of y.
  void finish(std::int64_t pixel, std::int64_t channel, double product, double magnitude, bool oracle) const {
    const std::int64_t at = tw::conv::element_at(shape_.y_channels_first, pixel / shape_.pixels(), channel, shape_.k,
                                                 pixel % shape_.pixels(), shape_.pixels());
    GemmSums sums{product, magnitude, 0, alpha_, 0, 0};
    if (conv_.bias) sums.bias = decoded_at(*conv_.bias, args_.bias, channel);
    if (conv_.residual) sums.residual = beta_ * decoded_at(*conv_.residual, args_.residual, at);
    if (oracle) {
      const Expected expected = gemm_expected(gemm_, sums);
      float* const out = static_cast<float*>(args_.y);
      out[at] = static_cast<float>(expected.value);
      out[gemm_.m * gemm_.n + at] = static_cast<float>(expected.bound);
      return;
    }
    const auto value = static_cast<float>((activate(conv_.act, sums.product * sums.scale + sums.bias) + sums.residual) *
                                          (1.0 / conv_.y_scale));
    conv_.y.info().encode(&value, 1, 1,
                          {static_cast<std::byte*>(args_.y) + conv_.y.stream_bytes(0, 1, at), nullptr, nullptr}, 0);
  }

  const Conv& conv_;
  ConvArgs args_;
  const Gemm gemm_;
  const tw::conv::Shape shape_;
  float x_inverse_ = 1, w_inverse_ = 1;
  double alpha_ = 1, beta_ = 1;
};

class Reference final : public ReferenceFamily {
 public:
  std::string_view op() const override { return Conv::kOperation; }
  std::string_view title() const override {
    return "CPU, any convolution, double accumulation; correctness before speed";
  }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    return !c                             ? "the problem is not a conv"
           : !arch.cpu                    ? "its kernels are for CPUs"
           : c->packing == Packing::tiles ? "w is packed as tiles, for GPUs"
                                          : "";
  }
  Source source(const Problem& problem, const Arch&, const Candidate& c) const override {
    Source s;
    s.name = "conv/cpu_reference";
    s.entry = "tilewright_reference";
    s.plan.cpu = {{1, kPixels, kChannels}};
    const auto run = [conv = *problem.as<Conv>(), oracle = c.at("oracle") != 0](const void* args, const void*, void*,
                                                                                std::int64_t block) {
      Launch(conv, *static_cast<const ConvArgs*>(args)).compute(block, oracle);
    };
    s.host = std::make_shared<const CpuKernel>(CpuKernel{{}, run});
    return s;
  }
};

}  // namespace

const Family& conv_reference() {
  static const Reference family;
  return family;
}

std::span<const Family* const> conv_families() {
  static const Family* const list[] = {&conv_depthwise(), &conv_columns(), &conv_reference()};
  return list;
}

}  // namespace tilewright::cpu
