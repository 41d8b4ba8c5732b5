// SPDX-License-Identifier: Apache-2.0
// A device's context, made current for one scope. What every driver call of jit/ happens under.
#pragma once

#include <string>

#include <tilewright/kernel.h>

#include "jit/driver.h"

namespace tilewright {

namespace jit::cpu {
struct Context;
}

struct Device::Impl : std::enable_shared_from_this<Device::Impl> {
  const jit::Driver* driver = nullptr;
  jit::CUdevice device = 0;
  jit::CUcontext context = nullptr;  // the primary one, retained
  unsigned long long context_id = 0;
  int ordinal = 0;
  int sms = 0, max_threads = 0, shared_optin = 0, registers = 0;
  std::int64_t max_grid[3] = {};
  std::int64_t l2_bytes = 0, memory_bytes = 0;
  std::string name, version;
  const Arch* arch = nullptr;
  std::shared_ptr<jit::cpu::Context> cpu;  // what `context` is, if the device is a CPU

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  // The context that this Device retained is gone: somebody reset the device. A reset context may come back at the same
  // address, so its id is compared. A few nanoseconds.
  bool lost() const {
    unsigned long long id = 0;
    return driver->context_id && (driver->context_id(context, &id) != 0 || id != context_id);
  }
};

namespace jit {

[[noreturn]] void throw_forked();
[[noreturn]] void throw_lost(const Device::Impl& device);

class ContextScope {
 public:
  // Throws Error: forked, driver_failed.
  explicit ContextScope(const Device::Impl& device) : driver_(*device.driver) {
    if (driver_.forked()) [[unlikely]]
      throw_forked();
    if (device.lost()) [[unlikely]]
      throw_lost(device);
    CUcontext current = nullptr;
    driver_.must(driver_.context_current, &current);
    if (current == device.context) return;
    driver_.must(driver_.context_push, device.context);
    pushed_ = true;
  }
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.context_pop(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// For destructors: runs `release` under the context if that still exists. In a forked child, after a reset or while
// the process ends, the handle is already gone, and there is nothing to release and no caller to report to.
template <class Release>
void release_quietly(const Device::Impl& device, Release release) noexcept {
  try {
    const ContextScope scope(device);
    release(*device.driver);
  } catch (...) {
  }
}

}  // namespace jit
}  // namespace tilewright
