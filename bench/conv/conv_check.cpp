// SPDX-License-Identifier: Apache-2.0
#include "bench/conv/conv_check.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <tilewright/error.h>

namespace tilewright::bench {
namespace {

std::int64_t value_of(const Axes& axes, int axis, std::int64_t otherwise) {
  if (axes.rank == 0) return otherwise;
  return axes.at[axes.rank == 1 ? 0 : static_cast<std::size_t>(axis)];
}

void check_plain(const Conv& conv) {
  const auto refuse = [](const char* field, const char* allowed) {
    throw Error(ErrorCode::unsupported, field, "", allowed);
  };
  if (conv.act != Activation::none) refuse("act", "must be none in a benchmark's convolution");
  if (conv.alpha != 1 || conv.beta != 1 || conv.y_scale != 1)
    refuse("alpha, beta, y_scale", "must be 1 in a benchmark's convolution");
  if (conv.cache && conv.x.info().streams.size() > 1) refuse("cache", "must be 0 where x has scales, in a benchmark");
  for (int i = 0; i < conv.pad_mode.rank; ++i)
    if (conv.pad_mode.at[static_cast<std::size_t>(i)] != PadMode::zero)
      refuse("pad_mode", "must be zero in a benchmark's convolution");
}

// A matrix of the task with the bytes that its launches see, in its format's own order.
class Content {
 public:
  Content(const Task& task, std::string_view name)
      : matrix_(*std::find_if(task.matrices.begin(), task.matrices.end(),
                              [&](const Matrix& m) { return m.name == name; })) {
    for (const StreamName s : kStreams) {
      if (matrix_.slot(s) < 0) continue;
      const Buffer& buffer = task.buffers[static_cast<std::size_t>(matrix_.slot(s))];
      std::vector<std::byte>& bytes = streams_[static_cast<std::size_t>(s)];
      bytes.resize(buffer.bytes);
      buffer.fill(bytes, 1);
    }
    if (matrix_.inverse_global && matrix_.global >= 0) {
      float& factor = *reinterpret_cast<float*>(streams_[static_cast<std::size_t>(StreamName::global)].data());
      factor = 1 / factor;
    }
    if (matrix_.restore) restore();
  }

  std::vector<float> row(std::int64_t r) const {
    MutableOperand from;
    const auto specs = matrix_.format.info().streams;
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      const StreamSpec& spec = specs[static_cast<std::size_t>(i)];
      const std::size_t row_bytes =
          spec.scope == Scope::tensor ? 0 : static_cast<std::size_t>(matrix_.format.stream_bytes(i, 1, matrix_.cols));
      auto& bytes = const_cast<std::vector<std::byte>&>(streams_[static_cast<std::size_t>(spec.stream)]);
      from.set(spec.stream, bytes.data() + row_bytes * static_cast<std::size_t>(r));
    }
    std::vector<float> values(static_cast<std::size_t>(matrix_.cols));
    matrix_.format.info().decode(from, 1, matrix_.cols, values.data());
    return values;
  }
  // An element of a format that has no scales but one of the tensor, wherever rows end.
  float element(std::int64_t i) const {
    const auto& data = streams_[static_cast<std::size_t>(StreamName::data)];
    const auto& global = streams_[static_cast<std::size_t>(StreamName::global)];
    const auto bytes = static_cast<std::size_t>(matrix_.format.stream_bytes(0, 1, 1));
    float value = 0;
    matrix_.format.info().decode({data.data() + bytes * static_cast<std::size_t>(i), nullptr,
                                  global.empty() ? nullptr : reinterpret_cast<const float*>(global.data())},
                                 1, 1, &value);
    return value;
  }

 private:
  // All streams but the tensor's scale, which is the same in both orders.
  void restore() {
    std::vector<std::byte> plain[3];
    MutableOperand from, to;
    const auto specs = matrix_.format.info().streams;
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      const StreamSpec& spec = specs[static_cast<std::size_t>(i)];
      if (spec.scope == Scope::tensor) continue;
      const auto at = static_cast<std::size_t>(spec.stream);
      plain[at].resize(static_cast<std::size_t>(matrix_.format.stream_bytes(i, matrix_.rows, matrix_.cols)));
      if (matrix_.slot(spec.stream) >= 0) from.set(spec.stream, streams_[at].data());
      to.set(spec.stream, plain[at].data());
    }
    matrix_.restore(from, to);
    for (const StreamName s : {StreamName::data, StreamName::scales})
      streams_[static_cast<std::size_t>(s)] = std::move(plain[static_cast<std::size_t>(s)]);
  }

  const Matrix& matrix_;
  std::vector<std::byte> streams_[3];
};

}  // namespace

std::vector<ConvAxis> axes_of(const Conv& conv) {
  const Axes out = output_extents(conv);
  std::vector<ConvAxis> axes;
  for (int i = 0; i < conv.in.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    axes.push_back({conv.in.at[at], out.at[at], value_of(conv.kernel, i, 1), value_of(conv.stride, i, 1),
                    value_of(conv.pad.lo, i, 0), value_of(conv.pad.hi, i, 0), value_of(conv.dilation, i, 1)});
  }
  return axes;
}

std::vector<ExpectedOutput> expected_outputs(const Conv& conv, const Task& task, int count) {
  check_plain(conv);
  std::vector<ConvAxis> axes = axes_of(conv);
  while (axes.size() < kMostAxes) axes.insert(axes.begin(), {1, 1, 1, 1, 0, 0, 1});
  const Content x(task, "x"), w(task, "w");
  std::optional<Content> cache, bias, residual;
  if (conv.cache) cache.emplace(task, "cache");
  if (conv.bias) bias.emplace(task, "bias");
  if (conv.residual) residual.emplace(task, "residual");
  std::int64_t in_pixels = 1, out_pixels = 1, taps = 1;
  for (const ConvAxis& a : axes) in_pixels *= a.in, out_pixels *= a.out, taps *= a.kernel;
  const std::int64_t channels = conv.c / conv.groups, cached = in_pixels / conv.in.at[0] * conv.cache;
  std::vector<ExpectedOutput> expected;
  std::uint64_t state = 12345;
  for (int e = 0; e < count; ++e) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto pixel = static_cast<std::int64_t>((state >> 24) % static_cast<std::uint64_t>(conv.n * out_pixels));
    const auto channel = static_cast<std::int64_t>((state >> 13) % static_cast<std::uint64_t>(conv.k));
    const std::int64_t image = pixel / out_pixels, place = pixel % out_pixels;
    const std::int64_t at[kMostAxes] = {place / axes[2].out / axes[1].out, place / axes[2].out % axes[1].out,
                                        place % axes[2].out};
    const std::int64_t first = channel / (conv.k / conv.groups) * channels;
    const std::vector<float> row = w.row(channel);
    double sum = 0, squares = 0;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t of_tap[kMostAxes] = {tap / axes[2].kernel / axes[1].kernel,
                                              tap / axes[2].kernel % axes[1].kernel, tap % axes[2].kernel};
      std::int64_t source = 0;
      bool inside = true;
      for (std::size_t a = 0; a < kMostAxes; ++a) {
        const std::int64_t i = at[a] * axes[a].stride - axes[a].before + of_tap[a] * axes[a].dilation;
        inside = inside && i >= 0 && i < axes[a].in;
        source = source * axes[a].in + i;
      }
      if (!inside) continue;
      const bool kept = source < cached;
      const Content& from = kept ? *cache : x;
      const std::int64_t pixels = kept ? cached : in_pixels - cached;
      if (!kept) source -= cached;
      for (std::int64_t c = 0; c < channels; ++c) {
        const double product =
            static_cast<double>(from.element(conv.x_layout == TensorLayout::ncdhw
                                                 ? (image * conv.c + first + c) * pixels + source
                                                 : (image * pixels + source) * conv.c + first + c)) *
            row[static_cast<std::size_t>(conv.w_layout == FilterLayout::kctrs ? c * taps + tap : tap * channels + c)];
        sum += product, squares += product * product;
      }
    }
    const std::int64_t index = conv.y_layout == TensorLayout::ncdhw ? (image * conv.k + channel) * out_pixels + place
                                                                    : pixel * conv.k + channel;
    if (bias) sum += bias->element(channel);
    if (residual) sum += residual->element(index);
    expected.push_back({static_cast<std::size_t>(index), sum, std::sqrt(squares)});
  }
  return expected;
}

double worst_error(std::span<const ExpectedOutput> expected, const std::function<double(std::size_t)>& y) {
  double worst = 0;
  for (const ExpectedOutput& e : expected) {
    const double relative = std::fabs(y(e.index) - e.value) / (std::fabs(e.value) + e.norm + 1e-30);
    if (std::isnan(relative)) return INFINITY;
    worst = std::max(worst, relative);
  }
  return worst;
}

}  // namespace tilewright::bench
