// SPDX-License-Identifier: Apache-2.0
#include "tilewright/memory.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "jit/context.h"
#include "jit/device.h"

namespace tilewright {

using jit::ContextScope;
using jit::CUdeviceptr;
using jit::CUresult;
using jit::CUstream;
using jit::Driver;

namespace {

CUdeviceptr address(const void* pointer, std::size_t offset = 0) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer)) + offset;
}

void check_range(std::size_t offset, std::size_t bytes, std::size_t size) {
  if (offset > size || bytes > size - offset)
    throw Error(ErrorCode::invalid_argument, "memory range", fmt::format("{} bytes at {}", bytes, offset),
                fmt::format("must lie in the allocation, which has {} bytes", size));
}

// Copies from pageable memory and fills return before the device has them, and non-blocking streams do not wait for the
// default stream: without this a launch could read stale bytes.
void finish(const Driver& driver) { driver.must(driver.stream_synchronize, CUstream{nullptr}); }

CUstream stream_of(Stream stream) { return static_cast<CUstream>(stream); }

}  // namespace

Memory::Memory(const Device& device, std::size_t bytes) : device_(device), size_(bytes) {
  if (bytes == 0) return;
  const ContextScope scope(*device.impl());
  const Driver& driver = *device.impl()->driver;
  CUdeviceptr pointer = 0;
  if (const CUresult result = driver.memory_allocate(&pointer, bytes))
    driver.fail("cuMemAlloc", result, fmt::format("for {} bytes", bytes));
  data_ = reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
}

Memory::Memory(Memory&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  Memory taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

Memory::~Memory() {
  if (data_) jit::release_quietly(*device_.impl(), [&](const Driver& driver) { driver.memory_free(address(data_)); });
}

void Memory::upload(std::span<const std::byte> from, std::size_t offset) {
  check_range(offset, from.size(), size_);
  if (from.empty()) return;
  const ContextScope scope(*device_.impl());
  const Driver& driver = *device_.impl()->driver;
  driver.must(driver.copy_to_device, address(data_, offset), from.data(), from.size());
  finish(driver);
}

void Memory::download(std::span<std::byte> to, std::size_t offset) const {
  check_range(offset, to.size(), size_);
  if (to.empty()) return;
  const ContextScope scope(*device_.impl());
  const Driver& driver = *device_.impl()->driver;
  driver.must(driver.copy_to_host, to.data(), address(data_, offset), to.size());
}

void Memory::fill(unsigned char byte) {
  if (size_ == 0) return;
  const ContextScope scope(*device_.impl());
  const Driver& driver = *device_.impl()->driver;
  driver.must(driver.memory_set, address(data_), byte, size_);
  finish(driver);
}

void Memory::copy_from(const Memory& other) {
  check_range(0, other.size_, size_);
  if (other.size_ == 0) return;
  const ContextScope scope(*device_.impl());
  const Driver& driver = *device_.impl()->driver;
  driver.must(driver.copy_on_device, address(data_), address(other.data_), other.size_);
  finish(driver);
}

OwnedStream::OwnedStream(const Device& device) : device_(device) {
  constexpr unsigned kNonBlocking = 1;  // independent of the legacy default stream, which others may keep busy
  const ContextScope scope(*device.impl());
  CUstream stream = nullptr;
  device.impl()->driver->must(device.impl()->driver->stream_create, &stream, kNonBlocking);
  stream_ = stream;
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : device_(std::move(other.device_)), stream_(std::exchange(other.stream_, nullptr)) {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  OwnedStream taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(stream_, taken.stream_);
  return *this;
}

OwnedStream::~OwnedStream() {
  if (stream_)
    jit::release_quietly(*device_.impl(), [&](const Driver& driver) { driver.stream_destroy(stream_of(stream_)); });
}

Stream OwnedStream::get() const {
  if (!stream_) throw Error(ErrorCode::invalid_argument, "stream", "moved from", "must not be used: it was moved away");
  return stream_;
}

void OwnedStream::synchronize() const {
  const Stream stream = get();
  const ContextScope scope(*device_.impl());
  device_.impl()->driver->must(device_.impl()->driver->stream_synchronize, stream_of(stream));
}

bool OwnedStream::capturing() const { return jit::capturing(device_, get()); }

}  // namespace tilewright
