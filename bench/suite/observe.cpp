// SPDX-License-Identifier: Apache-2.0
// Observers on the device against observers on the host, to the bit.
#include <fmt/format.h>
#include <tilewright/device_observer.h>

#include <cmath>
#include <limits>
#include <random>

#include "bench/suite/suite.h"

namespace tilewright::bench {
namespace {

std::vector<std::byte> encoded(const Format& format, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(format.stream_bytes(0, 1, count)));
  format.info().encode(values.data(), 1, count, {bytes.data(), nullptr, nullptr}, 0);
  return bytes;
}

std::string against_host(Suite& s, const Format& format, const ObserverOptions& options, std::int64_t inner,
                         std::size_t elements) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  DeviceObserver device(s.engine(), s.device(), format, options);
  Observer host(options);
  OwnedStream stream(s.device());
  std::vector<Memory> held;
  std::int64_t first = 0;
  for (const float size : {0.001f, 0.5f, 0.1f, 30.0f}) {
    std::vector<float> values(elements + random() % 100);
    for (float& v : values) v = size * normal(random);
    for (const float special : {std::numeric_limits<float>::quiet_NaN(), -0.0f, 1e-41f})
      values[random() % values.size()] = special;
    const std::vector<std::byte> bytes = encoded(format, values);
    const auto count = static_cast<std::int64_t>(values.size());
    held.emplace_back(s.device(), bytes.size()).upload(bytes);
    device.observe(stream.get(), held.back().data(), count, first, inner);
    device.end_batch(stream.get());
    host.observe(format, bytes, first, inner);
    host.end_batch();
    first += count;
  }
  const Observer got = device.observed();
  for (std::size_t c = 0; c < host.channels().size(); ++c)
    if (got.channels()[c] != host.channels()[c])
      return fmt::format("channel {}: {} values from {} to {}, expected {} from {} to {}", c, got.channels()[c].count,
                         got.channels()[c].min, got.channels()[c].max, host.channels()[c].count, host.channels()[c].min,
                         host.channels()[c].max);
  device.clear();
  return device.observed() == Observer(options) ? "" : "clear() leaves something";
}

}  // namespace

void observe_checks(Suite& s) {
  const bool one = s.extent() == Extent::one;
  const std::size_t elements = one ? 3000 : 1000003;
  for (const char* name : {"f32", "f16", "bf16"}) {
    const Format format = Format::parse(name);
    for (const ObserverOptions& options :
         {ObserverOptions{}, ObserverOptions{.bins = 0}, ObserverOptions{.bins = 65536},
          ObserverOptions{.channels = 64}, ObserverOptions{.channels = 4096, .bins = 256}})
      for (const std::int64_t inner : {1, 1000}) {
        if (options.channels == 1 && inner > 1) continue;
        s.check(fmt::format("observer of {}, {} channels of {}, {} bins", name, options.channels, inner, options.bins),
                [&] { return against_host(s, format, options, inner, elements); });
      }
  }
}

}  // namespace tilewright::bench
