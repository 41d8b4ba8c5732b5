// SPDX-License-Identifier: Apache-2.0
// The algorithms of post_training.h as a LayerQuantizer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tilewright/error.h>
#include <tilewright/gptq.h>
#include <tilewright/quantize_model.h>
#include <tilewright/text.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "quantize/layers/activations.h"
#include "quantize/rounding/rounding.h"
#include "quantize/rounding/tiles.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using namespace quantize;

constexpr int kMostThreads = 256;  // that the algorithms take

class Layer : public QuantizedLayer {
 public:
  Layer(QuantizedLinear q, OutputError error) : q_(std::move(q)), error_(std::move(error)) {}
  std::span<const std::int32_t> order() const override { return q_.order; }
  std::span<const float> input_scales() const override { return q_.input_scales; }
  OutputError output_error() const override { return error_; }
  void encode(std::int64_t first, std::int64_t count, const float*, MutableOperand to) const override {
    const auto copy = [&](int stream, const std::vector<std::byte>& from, void* at) {
      std::memcpy(at, from.data() + q_.format.stream_bytes(stream, first, q_.k),
                  static_cast<std::size_t>(q_.format.stream_bytes(stream, count, q_.k)));
    };
    copy(0, q_.data, to.data);
    copy(1, q_.scales, to.scales);
  }

 private:
  QuantizedLinear q_;
  OutputError error_;
};

class Calibrated : public LayerQuantizer {
 public:
  Calibrated(const PostTraining& options, int encoder)
      : options_(options), encoder_(encoder), activations_(options.calibration) {
    if (options.fallback) fallback_ = round_to_nearest(options.format, options.encoder);
  }
  Format format() const override { return options_.format; }
  bool reorders() const override {
    return options_.method == "gptq" && options_.gptq.act_order && !options_.gptq.static_groups;
  }
  bool scales_inputs() const override { return options_.method == "awq"; }
  std::string identity() const override {
    std::string how;
    if (options_.method == "gptq")
      how = fmt::format(" act_order={} static_groups={} damping={}", options_.gptq.act_order,
                        options_.gptq.static_groups, options_.gptq.damping);
    if (options_.method == "awq")
      how = fmt::format(" grid={} clip={} search_rows={}", options_.awq.grid, options_.awq.clip,
                        options_.awq.search_rows);
    return fmt::format("{}{}, {} v{}, {}, calibration {}{}", options_.method, how, format().name(),
                       format().info().layout_version, format().info().encoders[static_cast<std::size_t>(encoder_)],
                       activations_.identity(), options_.fallback ? ", else round to nearest" : "");
  }
  void check(std::string_view name, std::int64_t, std::int64_t cols) const override {
    if (!activations_.has(name, cols) && !options_.fallback)
      throw must_be(
          fmt::format("calibration of '{}'", printable(name)), "none",
          fmt::format("an array of that name with rows of {}; or skip this tensor, or ask for it to be rounded "
                      "to nearest. There are: {}",
                      cols, activations_.names()));
  }
  std::unique_ptr<QuantizedLayer> begin(const LayerWeights& layer) const override {
    if (!activations_.has(layer.name, layer.cols)) return fallback_->begin(layer);
    const int threads = std::clamp(layer.threads, 1, kMostThreads);
    const auto stage = [&](const std::string& what) {
      if (layer.stage) layer.stage(what);
    };
    const Hessian hessian = activations_.hessian(
        layer.name, layer.cols, threads, [&](std::int64_t rows) { stage(fmt::format("calibrating, {} rows", rows)); });
    stage(options_.method);
    std::vector<float> w(static_cast<std::size_t>(layer.rows * layer.cols));
    layer.read(0, layer.rows, w.data());
    const LinearWeight weight{w, layer.rows, layer.cols, layer.name};
    const QuantizeTarget target{options_.format, 0, encoder_, threads};
    QuantizedLinear q = options_.method == "gptq"  ? by_gptq(weight, hessian, target)
                        : options_.method == "awq" ? awq(weight, hessian, target, options_.awq)
                                                   : round_to_nearest(weight, hessian, target);
    q.values = {};  // as large as w
    OutputError error{options_.method, hessian.rows(), q.error, q.energy};
    return std::make_unique<Layer>(std::move(q), std::move(error));
  }

 private:
  QuantizedLinear by_gptq(const LinearWeight& w, const Hessian& hessian, const QuantizeTarget& target) const {
    constexpr double kMost = 0.9;  // of the device's memory: others have some of it
    const bool on_devices = options_.format.info().integer_grid->bits == 4;  // gptq_tasks()
    if (options_.device && on_devices &&
        static_cast<double>(gptq_device_bytes(w.n, w.k, target.group)) <
            kMost * static_cast<double>(options_.device->memory_bytes()))
      return gptq(*options_.engine, *options_.device, w, hessian, target, options_.gptq);
    return gptq(w, hessian, target, options_.gptq);
  }

  PostTraining options_;
  int encoder_;
  Activations activations_;
  std::unique_ptr<LayerQuantizer> fallback_;
};

}  // namespace

std::unique_ptr<LayerQuantizer> post_training(const PostTraining& options) {
  if (options.method != "gptq" && options.method != "awq" && options.method != "rtn")
    throw must_be("method", options.method, "gptq, awq or rtn");
  if (!options.engine != !options.device)
    throw must_be(options.engine ? "device" : "engine", "null", "given with the other");
  const int encoder = encoder_index(options.format, options.encoder);
  const Rounder checked(options.format, encoder, options.method);
  // What the algorithms refuse whatever the layer, before any file is read.
  const std::vector<float> w(128), ones(128, 1.0f);
  Hessian one(128);
  one.add(Format::parse("f32"), ones.data(), 1, 128, 1);
  const LinearWeight weight{w, 1, 128, options.method};
  if (options.method == "gptq") gptq(weight, one, {options.format, 0, encoder, 1}, options.gptq);
  if (options.method == "awq") awq(weight, one, {options.format, 0, encoder, 1}, options.awq);
  return std::make_unique<Calibrated>(options, encoder);
}

}  // namespace tilewright
