// SPDX-License-Identifier: Apache-2.0
// A task's buffers with random content, and launches that are timed: what run and bench share.
#pragma once

#include <tilewright/kernel.h>
#include <tilewright/memory.h>
#include <tilewright/task.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tilewright::cli {

constexpr double kMostBytes = 16e9;  // of operands, which are made in host memory

using Clock = std::chrono::steady_clock;

inline double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The task's buffers in host memory: inputs with content, outputs of bytes that are NaN to every float.
struct HostBuffers {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;

  HostBuffers(const Task& task, std::uint64_t seed) {
    for (const Buffer& b : task.buffers) {
      bytes.emplace_back(b.bytes, b.scratch ? std::byte{0} : std::byte{0xff});
      if (b.fill && !b.output) b.fill(bytes.back(), seed);
    }
    for (std::vector<std::byte>& b : bytes) spans.emplace_back(b);
  }
};

// The same on a device.
struct DeviceBuffers {
  std::vector<Memory> memory;
  std::vector<void*> pointers;

  DeviceBuffers(const Device& device, const HostBuffers& host) {
    for (const std::vector<std::byte>& bytes : host.bytes) {
      memory.emplace_back(device, bytes.size()).upload(bytes);
      pointers.push_back(memory.back().data());
    }
  }
};

// Warm: launches back to back over the same operands. Microseconds of one.
template <class Launch>
double time_launches(const Device& device, const Launch& launch) {
  for (int i = 0; i < 3; ++i) launch();
  device.synchronize();
  for (int count = 8;; count *= 2) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) launch();
    device.synchronize();
    const double total = microseconds_since(start);
    if (total > 2e4 || count >= 1 << 14) return total / count;
  }
}

}  // namespace tilewright::cli
