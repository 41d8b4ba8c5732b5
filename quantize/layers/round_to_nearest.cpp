// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <tilewright/error.h>
#include <tilewright/quantize_model.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "quantize/rounding/rounding.h"
#include "support/must_be.h"
#include "support/threads.h"

namespace tilewright {
namespace {

class Layer : public QuantizedLayer {
 public:
  Layer(const LayerWeights& w, const FormatInfo& info, int encoder)
      : info_(info), cols_(w.cols), encoder_(encoder), global_(1) {
    if (!info.global_for) return;
    constexpr std::int64_t kFloats = 1 << 18;
    const std::int64_t rows = std::max<std::int64_t>(1, kFloats / w.cols);
    std::vector<float> largest(static_cast<std::size_t>((w.rows + rows - 1) / rows));
    parallel(w.threads, largest.size(), [&](std::size_t part) {
      const std::int64_t first = static_cast<std::int64_t>(part) * rows, count = std::min(rows, w.rows - first);
      std::vector<float> values(static_cast<std::size_t>(count * w.cols));
      w.read(first, count, values.data());
      for (const float v : values) largest[part] = std::max(largest[part], std::fabs(v));
    });
    const float amax = *std::max_element(largest.begin(), largest.end());
    global_ = info.global_for(amax);
  }
  void encode(std::int64_t, std::int64_t count, const float* w, MutableOperand to) const override {
    info_.encode(w, count, cols_, to, encoder_);
  }
  float global_scale() const override { return global_; }

 private:
  const FormatInfo& info_;
  std::int64_t cols_;
  int encoder_;
  float global_;
};

class RoundToNearest : public LayerQuantizer {
 public:
  RoundToNearest(Format format, int encoder) : format_(format), encoder_(encoder) {}
  Format format() const override { return format_; }
  std::string identity() const override {
    return fmt::format("round to nearest, {} v{}, {}", format_.name(), format_.info().layout_version,
                       format_.info().encoders[static_cast<std::size_t>(encoder_)]);
  }
  std::unique_ptr<QuantizedLayer> begin(const LayerWeights& weights) const override {
    return std::make_unique<Layer>(weights, format_.info(), encoder_);
  }

 private:
  Format format_;
  int encoder_;
};

}  // namespace

std::string_view quantize::layer_of(std::string_view tensor) {
  constexpr std::string_view kWeight = ".weight";
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

int quantize::encoder_index(Format format, std::string_view name) {
  const auto encoders = format.info().encoders;
  const auto found = name.empty() ? encoders.begin() : std::find(encoders.begin(), encoders.end(), name);
  if (found == encoders.end())
    throw must_be("encoder", name, fmt::format("one of {} for {}", fmt::join(encoders, ", "), format.name()));
  return static_cast<int>(found - encoders.begin());
}

std::unique_ptr<LayerQuantizer> round_to_nearest(Format format, std::string_view encoder) {
  return std::make_unique<RoundToNearest>(format, quantize::encoder_index(format, encoder));
}

}  // namespace tilewright
