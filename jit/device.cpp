// SPDX-License-Identifier: Apache-2.0
#include "jit/device.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "jit/context.h"

namespace tilewright {

using jit::ContextScope;
using jit::Driver;

namespace jit {

void throw_forked() {
  throw Error(ErrorCode::forked, "process", "",
              "CUDA cannot be used in a child of fork(). Start the child with exec (Python: multiprocessing 'spawn')");
}

void throw_lost(const Device::Impl& device) {
  throw Error(ErrorCode::driver_failed, "context", fmt::format("device {}", device.ordinal),
              "the device was reset; everything made on it is gone. Open it again");
}

namespace {

// The kernel module's version names the driver more exactly than the API version, which covers many of them.
std::string describe_version(const Driver& driver) {
  int api = 0;
  driver.must(driver.version, &api);
  const std::string cuda = fmt::format("CUDA {}.{}", api / 1000, api % 1000 / 10);
  if (driver.path() != "libcuda.so.1") return cuda;
  std::ifstream file("/sys/module/nvidia/version");
  std::string module;
  return file >> module ? fmt::format("{} ({})", module, cuda) : cuda;
}

int attribute(const Driver& driver, CUdevice device, DeviceAttribute which) {
  int value = 0;
  driver.must(driver.device_attribute, &value, static_cast<int>(which), device);
  return value;
}

void read_properties(Device::Impl& impl) {
  const Driver& driver = *impl.driver;
  char name[256] = {};
  driver.must(driver.device_name, name, static_cast<int>(sizeof(name) - 1), impl.device);
  impl.name = name;
  impl.version = describe_version(driver);
  auto get = [&](DeviceAttribute which) { return attribute(driver, impl.device, which); };
  impl.sms = get(kMultiprocessors);
  impl.max_threads = get(kMaxThreadsPerBlock);
  impl.shared_optin = get(kSharedOptin);
  impl.registers = get(kRegistersPerBlock);
  impl.l2_bytes = get(kL2Bytes);
  impl.max_grid[0] = get(kMaxGridX);
  impl.max_grid[1] = get(kMaxGridY);
  impl.max_grid[2] = get(kMaxGridZ);
  std::size_t bytes = 0;
  driver.must(driver.device_memory, &bytes, impl.device);
  impl.memory_bytes = static_cast<std::int64_t>(bytes);
  const int major = get(kMajor), minor = get(kMinor);
  impl.arch = arch_for(major, minor);
  if (!impl.arch)
    throw Error(ErrorCode::unsupported, "device", fmt::format("{} ({})", impl.ordinal, impl.name),
                fmt::format("compute capability {}.{} is older than every known target", major, minor));
}

int count_devices(const Driver& driver) {
  const CUresult ready = driver.init(0);
  if (ready == kNoDevice) return 0;
  if (ready != 0) driver.fail("cuInit", ready);
  int count = 0;
  driver.must(driver.device_count, &count);
  return count;
}

}  // namespace
}  // namespace jit

Device::Impl::~Impl() {
  if (context && !driver->forked()) driver->primary_release(device);
}

Device Device::open(int ordinal) { return open(ordinal, ""); }

Device Device::open(int ordinal, const std::string& library) {
  const Driver& driver = Driver::open(library);
  if (driver.forked()) jit::throw_forked();
  const int count = jit::count_devices(driver);
  if (ordinal < 0 || ordinal >= count)
    throw Error(ErrorCode::invalid_argument, "device", fmt::format("{}", ordinal),
                count == 0   ? "this machine has no CUDA device"
                : count == 1 ? "the only device is 0"
                             : fmt::format("the devices are 0 to {}", count - 1));
  auto impl = std::make_shared<Impl>();
  impl->driver = &driver;
  impl->ordinal = ordinal;
  driver.must(driver.device_get, &impl->device, ordinal);
  jit::read_properties(*impl);
  driver.must(driver.primary_retain, &impl->context, impl->device);
  if (driver.context_id) driver.must(driver.context_id, impl->context, &impl->context_id);
  return Device(std::move(impl));
}

int Device::count() { return count(""); }

int Device::count(const std::string& library) {
  try {
    const Driver& driver = Driver::open(library);
    return driver.forked() ? 0 : jit::count_devices(driver);
  } catch (const std::exception&) {
    return 0;
  }
}

const std::string& Device::name() const { return impl_->name; }
int Device::ordinal() const { return impl_->ordinal; }
int Device::sms() const { return impl_->sms; }
std::int64_t Device::l2_bytes() const { return impl_->l2_bytes; }
std::int64_t Device::memory_bytes() const { return impl_->memory_bytes; }
const std::string& Device::driver_version() const { return impl_->version; }
const Arch& Device::arch() const { return *impl_->arch; }

void Device::synchronize() const {
  const ContextScope scope(*impl_);
  impl_->driver->must(impl_->driver->context_synchronize);
}

namespace jit {
namespace {

CUdeviceptr address(const void* pointer, std::size_t offset = 0) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer)) + offset;
}

void check_range(std::size_t offset, std::size_t bytes, std::size_t size) {
  if (offset > size || bytes > size - offset)
    throw Error(ErrorCode::invalid_argument, "memory range", fmt::format("{} bytes at {}", bytes, offset),
                fmt::format("the allocation has {} bytes", size));
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
  if (data_) release_quietly(*device_.impl(), [&](const Driver& driver) { driver.memory_free(address(data_)); });
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
    release_quietly(*device_.impl(), [&](const Driver& driver) { driver.stream_destroy(stream_of(stream_)); });
}

void OwnedStream::synchronize() const {
  const ContextScope scope(*device_.impl());
  device_.impl()->driver->must(device_.impl()->driver->stream_synchronize, stream_of(stream_));
}

bool OwnedStream::capturing() const { return jit::capturing(device_, stream_); }

bool capturing(const Device& device, Stream stream) {
  const ContextScope scope(*device.impl());
  const Driver& driver = *device.impl()->driver;
  int status = 0;
  const CUresult result = driver.stream_capturing(stream_of(stream), &status);
  // The default stream cannot capture, but work on it would break the capture of a stream that waits for it.
  if (result == kCaptureImplicit) return true;
  if (result != 0) driver.fail("cuStreamIsCapturing", result);
  return status != 0;
}

std::int64_t free_memory(const Device& device) {
  const ContextScope scope(*device.impl());
  std::size_t free = 0, total = 0;
  device.impl()->driver->must(device.impl()->driver->memory_info, &free, &total);
  return static_cast<std::int64_t>(free);
}

}  // namespace jit
}  // namespace tilewright
