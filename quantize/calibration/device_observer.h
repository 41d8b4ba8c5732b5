// SPDX-License-Identifier: Apache-2.0
// The launches of a DeviceObserver, and the Observer that its memory makes, apart from any device.
#pragma once

#include <tilewright/device_observer.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tilewright {

class DeviceObservation {
 public:
  using Launch = std::function<void(const ObserveArgs& args, std::int64_t blocks)>;

  // Throws Error as Observer's constructor.
  explicit DeviceObservation(const ObserverOptions& options);

  std::vector<ObserveChannel> initial() const;
  ObserveState state() const;  // without pointers
  void observe(const void* x, std::int64_t elements, std::int64_t first, std::int64_t inner, std::int64_t most_blocks,
               const Launch& launch);
  void end_batch(const Launch& launch) const;
  Observer observed(std::span<const ObserveChannel> channels, std::span<const std::uint64_t> counts,
                    std::uint64_t infinite) const;
  void clear();

  const ObserverOptions& options() const { return options_; }
  std::int64_t counters() const { return 2 * options_.channels * options_.bins; }

 private:
  ObserverOptions options_;
  std::vector<std::uint64_t> seen_;  // elements of each channel
};

}  // namespace tilewright
