// SPDX-License-Identifier: Apache-2.0
#include "quantize/calibration/device_observer.h"

#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/memory.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "quantize/calibration/observation.h"
#include "support/must_be.h"

namespace tilewright {

using namespace quantize;

namespace {

using Step = ObserveArgs::Step;

constexpr std::int64_t kThreads = 256, kElementsPerThread = 16;

double value(std::uint32_t key) {
  return static_cast<double>(std::bit_cast<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key));
}

// Of the elements 0 to end - 1.
std::uint64_t in_channel(std::int64_t channel, std::int64_t channels, std::int64_t end, std::int64_t inner) {
  // Where a period of all channels is longer than any array, there is none.
  std::int64_t period = 0, before = 0;
  const bool endless = __builtin_mul_overflow(inner, channels, &period);
  if (__builtin_mul_overflow(inner, channel, &before)) return 0;
  const std::int64_t whole = endless ? 0 : end / period, rest = endless ? end : end % period;
  return static_cast<std::uint64_t>(whole * inner + std::clamp<std::int64_t>(rest - before, 0, inner));
}

}  // namespace

DeviceObservation::DeviceObservation(const ObserverOptions& options)
    : options_(Observer(options).options()), seen_(static_cast<std::size_t>(options.channels)) {}

std::vector<ObserveChannel> DeviceObservation::initial() const {
  ObserveChannel empty;
  if (options_.bins) empty.exponent = exponent_for(0, options_.bins);
  return std::vector<ObserveChannel>(seen_.size(), empty);
}

ObserveState DeviceObservation::state() const {
  ObserveState s;
  s.channels = options_.channels, s.bins = options_.bins, s.momentum = options_.momentum;
  while (1 << s.log2_bins < s.bins) ++s.log2_bins;
  return s;
}

void DeviceObservation::observe(const void* x, std::int64_t elements, std::int64_t first, std::int64_t inner,
                                std::int64_t most_blocks, const Launch& launch) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;  // an index and a sign
  if (elements < 0 || elements > kMost) throw must_be("elements", elements, fmt::format("0 to {}", kMost));
  if (first < 0 || first > kMost - elements) throw must_be("first", first, "an index of at least 0");
  if (inner < 1) throw must_be("inner", inner, "at least 1");
  if (!elements) return;
  if (!x) throw Error(ErrorCode::invalid_argument, "x", "null", fmt::format("must have {} elements", elements));
  const std::int64_t tile = kThreads * kElementsPerThread, blocks = std::min((elements + tile - 1) / tile, most_blocks);
  ObserveArgs args{.x = x, .elements = elements, .first = first, .inner = inner};
  launch(args, blocks);
  args.step = Step::settle;
  launch(args, options_.channels);
  args.step = Step::count;
  if (options_.bins) launch(args, blocks);
  for (std::int64_t c = 0; c < options_.channels; ++c)
    seen_[static_cast<std::size_t>(c)] +=
        in_channel(c, options_.channels, first + elements, inner) - in_channel(c, options_.channels, first, inner);
}

void DeviceObservation::end_batch(const Launch& launch) const {
  launch({.step = Step::end_batch}, (options_.channels + kThreads - 1) / kThreads);
}

Observer DeviceObservation::observed(std::span<const ObserveChannel> channels, std::span<const std::uint64_t> counts,
                                     std::uint64_t infinite) const {
  if (infinite) {
    const std::uint64_t place = ~infinite;
    const auto element = static_cast<std::int64_t>(place / 2);
    throw must_be(fmt::format("element {}", element), place % 2 ? "-inf" : "inf", "finite or NaN");
  }
  Observer observer(options_);
  const auto bins = static_cast<std::size_t>(options_.bins);
  for (std::size_t c = 0; c < channels.size(); ++c) {
    const ObserveChannel& from = channels[c];
    Observation& to = observer.channels_[c];
    to.nans = from.nans;
    to.count = seen_[c] - from.nans;
    to.exponent = from.exponent;
    to.batches = from.batches;
    std::copy(from.first, from.first + 2, to.first.begin());
    std::copy(from.average, from.average + 2, to.average.begin());
    if (from.batch_most) to.batch = {value(~from.batch_least), value(from.batch_most)};
    if (!from.most) continue;
    to.min = value(~from.least), to.max = value(from.most);
    const auto counted = counts.subspan(2 * bins * c, 2 * bins);
    if (to.min < 0) to.negative.assign(counted.begin(), counted.begin() + options_.bins);
    if (to.max >= 0) to.positive.assign(counted.begin() + options_.bins, counted.end());
  }
  return observer;
}

void DeviceObservation::clear() { std::fill(seen_.begin(), seen_.end(), 0); }

struct DeviceObserver::Impl {
  Impl(Engine& engine, const Device& on, Format x, const ObserverOptions& options)
      : steps(options),
        task(observe_task(x)),
        device(on),
        channels(on, sizeof(ObserveChannel) * static_cast<std::size_t>(options.channels)),
        counts(on, std::max<std::size_t>(8, 8 * static_cast<std::size_t>(steps.counters()))),
        infinite(on, 8),
        most_blocks(std::int64_t{8} * on.sms()) {
    ObserveState state = steps.state();
    state.state = static_cast<ObserveChannel*>(channels.data());
    state.counts = static_cast<std::uint64_t*>(counts.data());
    state.infinite = static_cast<std::uint64_t*>(infinite.data());
    const auto bytes = std::as_bytes(std::span(&state, 1));
    task.contract.constants.assign(bytes.begin(), bytes.end());
    kernel.emplace(engine.prepare(task, on));
    clear();
  }
  void clear() {
    device.synchronize();
    const std::vector<ObserveChannel> initial = steps.initial();
    channels.upload(std::as_bytes(std::span(initial)));
    counts.fill(0);
    infinite.fill(0);
    steps.clear();
  }
  DeviceObservation::Launch on(Stream stream) const {
    return [this, stream](const ObserveArgs& args, std::int64_t blocks) {
      kernel->launch(stream, std::as_bytes(std::span(&args, 1)), blocks, 0);
    };
  }

  DeviceObservation steps;
  Task task;
  Device device;
  Memory channels, counts, infinite;
  std::int64_t most_blocks;
  std::optional<Kernel> kernel;
};

DeviceObserver::DeviceObserver(Engine& engine, const Device& device, Format x, const ObserverOptions& options)
    : impl_(std::make_unique<Impl>(engine, device, x, options)) {}
DeviceObserver::DeviceObserver(DeviceObserver&&) noexcept = default;
DeviceObserver& DeviceObserver::operator=(DeviceObserver&&) noexcept = default;
DeviceObserver::~DeviceObserver() = default;

void DeviceObserver::observe(Stream stream, const void* x, std::int64_t elements, std::int64_t first,
                             std::int64_t inner) {
  impl_->steps.observe(x, elements, first, inner, impl_->most_blocks, impl_->on(stream));
}
void DeviceObserver::end_batch(Stream stream) { impl_->steps.end_batch(impl_->on(stream)); }
void DeviceObserver::clear() { impl_->clear(); }
const ObserverOptions& DeviceObserver::options() const { return impl_->steps.options(); }

Observer DeviceObserver::observed() const {
  impl_->device.synchronize();
  std::vector<ObserveChannel> channels = impl_->steps.initial();
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(impl_->steps.counters()));
  std::uint64_t infinite = 0;
  impl_->channels.download(std::as_writable_bytes(std::span(channels)));
  if (!counts.empty()) impl_->counts.download(std::as_writable_bytes(std::span(counts)));
  impl_->infinite.download(std::as_writable_bytes(std::span(&infinite, 1)));
  return impl_->steps.observed(channels, counts, infinite);
}

}  // namespace tilewright
