// SPDX-License-Identifier: Apache-2.0
// Device resources for the tuner, tests and tools, beyond the public Device: memory, streams, events, graphs, the
// clock. Move-only RAII; every function throws Error (driver_failed) naming the driver call and its error. Each call
// makes the device's context current for the calling thread and restores the previous one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <tilewright/kernel.h>
#include <tilewright/memory.h>

namespace tilewright::jit {

using tilewright::Memory;
using tilewright::OwnedStream;

bool capturing(const Device& device, Stream stream);

// A captured sequence of launches. `record` is called once with a capturing stream; on a CPU, which captures nothing,
// by every launch().
class Graph {
 public:
  Graph(const Device& device, const OwnedStream& stream, const std::function<void(Stream)>& record);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();
  void launch(Stream stream) const;

 private:
  Device device_{nullptr};
  std::function<void(Stream)> record_;
  void* graph_ = nullptr;
  void* exec_ = nullptr;
};

class Event {
 public:
  explicit Event(const Device& device);
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();
  void record(Stream stream);
  void synchronize();
  double microseconds_since(const Event& start) const;

 private:
  Device device_{nullptr};
  void* event_ = nullptr;
};

std::int64_t free_memory(const Device& device);

}  // namespace tilewright::jit
