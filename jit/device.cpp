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
              "is a child of fork(), where CUDA cannot be used; start it with exec (Python: multiprocessing 'spawn')");
}

void throw_lost(const Device::Impl& device) {
  throw Error(ErrorCode::driver_failed, "context", fmt::format("device {}", device.ordinal),
              "was lost: the device was reset, with everything made on it; open it again");
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
    throw Error(
        ErrorCode::unsupported, "device", fmt::format("{} ({})", impl.ordinal, impl.name),
        fmt::format("is not supported: compute capability {}.{} is older than every known target", major, minor));
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
  if (context && !cpu && !driver->forked()) driver->primary_release(device);
}

Device Device::open(int ordinal) { return open(ordinal, ""); }

Device Device::open(int ordinal, const std::string& library) {
  const Driver& driver = Driver::open(library);
  if (driver.forked()) jit::throw_forked();
  const int count = jit::count_devices(driver);
  if (ordinal < 0 || ordinal >= count)
    throw Error(ErrorCode::invalid_argument, "device", fmt::format("{}", ordinal),
                count == 0   ? "is not available: this machine has no CUDA device"
                : count == 1 ? "must be 0, the only device"
                             : fmt::format("must be 0 to {}", count - 1));
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

bool capturing(const Device& device, Stream stream) {
  const ContextScope scope(*device.impl());
  const Driver& driver = *device.impl()->driver;
  int status = 0;
  const CUresult result = driver.stream_capturing(static_cast<CUstream>(stream), &status);
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
