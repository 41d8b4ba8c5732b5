// SPDX-License-Identifier: Apache-2.0
// Device memory and streams for programs without a CUDA runtime. Programs with one pass their own pointers and streams
// instead. Objects are move-only and free their memory. Each call makes the device's context current for the calling
// thread, and restores the previous context. Functions throw Error (driver_failed), which names the driver call. Only
// one thread at a time may use an object.
#pragma once

#include <cstddef>
#include <span>

#include <tilewright/export.h>
#include <tilewright/kernel.h>

namespace tilewright {

class TILEWRIGHT_EXPORT Memory {
 public:
  Memory() = default;
  Memory(const Device& device, std::size_t bytes);
  Memory(Memory&&) noexcept;
  Memory& operator=(Memory&&) noexcept;
  ~Memory();
  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void upload(std::span<const std::byte> from, std::size_t offset = 0);  // synchronous
  void download(std::span<std::byte> to, std::size_t offset = 0) const;  // synchronous
  void fill(unsigned char byte);                                         // whole allocation, synchronous
  void copy_from(const Memory& other);                                   // device to device, synchronous

 private:
  Device device_{nullptr};
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Does not wait for the legacy default stream.
class TILEWRIGHT_EXPORT OwnedStream {
 public:
  explicit OwnedStream(const Device& device);
  OwnedStream(OwnedStream&&) noexcept;
  OwnedStream& operator=(OwnedStream&&) noexcept;
  ~OwnedStream();
  // These throw Error (invalid_argument) if the stream was moved from, because null would be the legacy default stream.
  Stream get() const;
  void synchronize() const;
  bool capturing() const;

 private:
  Device device_{nullptr};
  Stream stream_ = nullptr;
};

}  // namespace tilewright
