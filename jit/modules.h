// SPDX-License-Identifier: Apache-2.0
// Modules: an image is loaded once into a context, however many kernels launch it. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include <tilewright/kernel.h>

#include "jit/driver.h"

namespace tilewright::jit {

using BinaryPtr = std::shared_ptr<const Binary>;

class Module {
 public:
  Module(std::shared_ptr<Device::Impl> device, BinaryPtr binary);  // throws Error (driver_failed)
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  CUmodule get() const { return module_; }
  const Device::Impl& device() const { return *device_; }
  const std::vector<std::byte>& image() const { return binary_->image; }
  const std::shared_ptr<const CpuKernel>& host() const { return binary_->host; }
  // Lets launches of the function have as much dynamic shared memory; never less than an earlier call did, since
  // several kernels may launch the function with plans of their own.
  void allow_shared(CUfunction function, int bytes) const;

 private:
  const std::shared_ptr<Device::Impl> device_;
  const BinaryPtr binary_;  // its image tells two modules of one size apart
  CUmodule module_ = nullptr;
  mutable std::mutex mutex_;
};

class Modules {
 public:
  // The context's module of this image, loaded now if no kernel there has it. Throws Error (driver_failed).
  std::shared_ptr<const Module> load(const std::shared_ptr<Device::Impl>& device, const BinaryPtr& binary);

 private:
  friend class Module;
  struct Slot {
    const Module* module;
    std::weak_ptr<const Module> alive;
  };
  void forget(const Module* module, std::size_t bytes);

  std::mutex mutex_;
  std::multimap<std::size_t, Slot> slots_;  // by the size of the image
};

}  // namespace tilewright::jit
