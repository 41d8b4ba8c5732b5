// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tilewright/error.h>

#include <limits>

#include "quantize/calibration/observation.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using namespace quantize;

void check(const ObserverOptions& o) {
  if (o.channels < 1 || o.channels > ObserverOptions::kMostChannels)
    throw Error(o.channels < 1 ? ErrorCode::invalid_argument : ErrorCode::too_large, "channels",
                std::to_string(o.channels), fmt::format("must be 1 to {}", ObserverOptions::kMostChannels));
  const bool power = o.bins > 0 && (o.bins & (o.bins - 1)) == 0;
  if (o.bins != 0 && (!power || o.bins < 256 || o.bins > 65536))
    throw must_be("bins", o.bins, "a power of two from 256 to 65536, or 0");
  if (o.channels * o.bins > ObserverOptions::kMostBins)
    throw Error(ErrorCode::too_large, "channels", fmt::format("{} of {} bins", o.channels, o.bins),
                fmt::format("must have at most {} bins in all", ObserverOptions::kMostBins));
  if (!(o.momentum >= 0 && o.momentum < 1))
    throw must_be("momentum", fmt::format("{}", o.momentum), "at least 0 and below 1");
}

// Joins bins until the width is 2^exponent.
void coarsen(Observation& o, int exponent) {
  const int by = exponent - o.exponent;
  if (by <= 0) return;
  for (auto* counts : {&o.negative, &o.positive}) {
    for (std::size_t i = 1; i < counts->size(); ++i) {
      const std::uint64_t count = std::exchange((*counts)[i], 0);
      (*counts)[by < 32 ? i >> by : 0] += count;  // i >> by < i, so its bin was moved before
    }
  }
  o.exponent = exponent;
}

// Least and largest value are floats, so the sum with 0, which makes -0 0, is exact.
void include(Observation& o, double min, double max, int bins) {
  o.min = o.count ? std::min(o.min, min + 0.0) : min + 0.0;
  o.max = o.count ? std::max(o.max, max + 0.0) : max + 0.0;
  if (bins) coarsen(o, exponent_for(amax(o), bins));
}

void add(Observation& o, std::span<const float> values, int bins) {
  float min = std::numeric_limits<float>::infinity(), max = -min;
  std::uint64_t nans = 0;
  for (const float v : values) {
    nans += v != v;
    min = v < min ? v : min;
    max = v > max ? v : max;
  }
  o.nans += nans;
  if (nans == values.size()) return;
  include(o, min, max, bins);
  o.count += values.size() - nans;
  if (!o.batch) o.batch = {min + 0.0, max + 0.0};
  o.batch = {std::min((*o.batch)[0], min + 0.0), std::max((*o.batch)[1], max + 0.0)};
  if (!bins) return;
  if (min < 0) o.negative.resize(static_cast<std::size_t>(bins));
  if (max >= 0) o.positive.resize(static_cast<std::size_t>(bins));
  const double per_value = std::ldexp(1.0, -o.exponent);
  for (const float v : values) {
    if (v < 0)
      ++o.negative[static_cast<std::size_t>(-static_cast<double>(v) * per_value)];
    else if (v >= 0)
      ++o.positive[static_cast<std::size_t>(static_cast<double>(v) * per_value)];
  }
}

void end_batch(Observation& o, double momentum) {
  if (!o.batch) return;
  if (o.batches++ == 0) o.first = *o.batch;
  for (std::size_t i = 0; i < 2; ++i) o.average[i] = momentum * o.average[i] + (1 - momentum) * (*o.batch)[i];
  o.batch.reset();
}

void add_counts(std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& from) {
  if (to.empty()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

// All but batches.
void join(Observation& to, Observation from, int bins) {
  to.nans += from.nans;
  if (from.count == 0) return;
  include(to, from.min, from.max, bins);
  coarsen(from, to.exponent);
  add_counts(to.negative, from.negative);
  add_counts(to.positive, from.positive);
  to.count += from.count;
}

void join_batches(Observation& to, const Observation& from, double momentum) {
  if (to.batches == 0) to.first = from.first;
  for (std::size_t i = 0; i < 2; ++i)
    to.average[i] = at_momentum(momentum, from.batches) * to.average[i] + from.average[i];
  to.batches += from.batches;
}

}  // namespace

Observer::Observer(const ObserverOptions& options) : options_(options) {
  check(options);
  Observation empty;
  if (options.bins) empty.exponent = exponent_for(0, options.bins);
  channels_.assign(static_cast<std::size_t>(options.channels), empty);
}

void Observer::observe(std::span<const float> values, std::int64_t first, std::int64_t inner) {
  const auto count = static_cast<std::int64_t>(values.size());
  if (first < 0 || first > std::numeric_limits<std::int64_t>::max() - count)
    throw must_be("first", first, "an index of at least 0");
  if (inner < 1) throw must_be("inner", inner, "at least 1");
  const auto channel = [&](std::int64_t i) { return (first + i) / inner % options_.channels; };
  for (std::int64_t i = 0; i < count; ++i)
    if (std::isinf(values[static_cast<std::size_t>(i)]))
      throw must_be(options_.channels == 1 ? fmt::format("element {}", first + i)
                                           : fmt::format("element {}, of channel {}", first + i, channel(i)),
                    fmt::format("{}", values[static_cast<std::size_t>(i)]), "finite or NaN");
  for (std::int64_t at = 0; at < count;) {
    const std::int64_t run = options_.channels == 1 ? count : std::min(inner - (first + at) % inner, count - at);
    add(channels_[static_cast<std::size_t>(channel(at))],
        values.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(run)), options_.bins);
    at += run;
  }
}

void Observer::observe(Format format, std::span<const std::byte> bytes, std::int64_t first, std::int64_t inner) {
  const std::string_view name = format.name();
  if (name != "f32" && name != "f16" && name != "bf16") throw must_be("format", name, "f32, f16 or bf16");
  const std::size_t size = name == "f32" ? 4 : 2;
  if (bytes.size() % size) throw must_be("bytes", bytes.size(), fmt::format("whole elements of {} bytes", size));
  std::vector<float> values(bytes.size() / size);
  format.info().decode({bytes.data(), nullptr, nullptr}, 1, static_cast<std::int64_t>(values.size()), values.data());
  observe(values, first, inner);
}

void Observer::end_batch() {
  for (Observation& o : channels_) tilewright::end_batch(o, options_.momentum);
}

void Observer::merge(const Observer& other) {
  if (options_ != other.options_)
    throw must_be("options",
                  fmt::format("{} channels, {} bins, momentum {}", other.options_.channels, other.options_.bins,
                              other.options_.momentum),
                  fmt::format("those of the observer merged into: {} channels, {} bins, momentum {}", options_.channels,
                              options_.bins, options_.momentum));
  end_batch();
  Observer ended = other;
  ended.end_batch();
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    join_batches(channels_[i], ended.channels_[i], options_.momentum);
    join(channels_[i], std::move(ended.channels_[i]), options_.bins);
  }
}

Observation Observer::total() const {
  Observation all;
  if (options_.bins) all.exponent = exponent_for(0, options_.bins);
  for (const Observation& o : channels_) join(all, o, options_.bins);
  return all;
}

}  // namespace tilewright
