// SPDX-License-Identifier: Apache-2.0
// What the tuner, tests and tools need of a device beyond the public Device: memory, streams, events, graphs, the clock.
// Move-only RAII; every function throws Error (driver_failed) naming the driver call and its error. Each call makes the
// device's context current for the calling thread and restores the previous one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <tilewright/kernel.h>

namespace tilewright::jit {

class Memory {
 public:
  Memory() = default;
  Memory(const Device& device, std::size_t bytes);
  Memory(Memory&&) noexcept;
  Memory& operator=(Memory&&) noexcept;
  ~Memory();
  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void upload(std::span<const std::byte> from, std::size_t offset = 0);       // synchronous
  void download(std::span<std::byte> to, std::size_t offset = 0) const;       // synchronous
  void fill(unsigned char byte);                                              // whole allocation, synchronous
  void copy_from(const Memory& other);                                        // device to device, synchronous

 private:
  Device device_{nullptr};
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

class OwnedStream {
 public:
  explicit OwnedStream(const Device& device);
  OwnedStream(OwnedStream&&) noexcept;
  OwnedStream& operator=(OwnedStream&&) noexcept;
  ~OwnedStream();
  Stream get() const { return stream_; }
  void synchronize() const;
  bool capturing() const;

 private:
  Device device_{nullptr};
  Stream stream_ = nullptr;
};

bool capturing(const Device& device, Stream stream);

// A captured sequence of launches. `record` is called once with a capturing stream.
class Graph {
 public:
  Graph(const Device& device, const OwnedStream& stream, const std::function<void(Stream)>& record);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();
  void launch(Stream stream) const;

 private:
  Device device_{nullptr};
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
