// SPDX-License-Identifier: Apache-2.0
#include "jit/modules.h"

#include <fmt/format.h>

#include <algorithm>

#include "jit/context.h"

namespace tilewright::jit {
namespace {

// A context that came back after a reset may have the address of the one before, but not its id. Without ids, only the
// kernels of one Device are known to share a context.
bool same_context(const Device::Impl& a, const Device::Impl& b) {
  return a.context == b.context && a.context_id == b.context_id && (a.driver->context_id || &a == &b);
}

}  // namespace

Module::Module(std::shared_ptr<Device::Impl> device, BinaryPtr binary)
    : device_(std::move(device)), binary_(std::move(binary)) {
  const ContextScope scope(*device_);
  const void* image = device_->cpu ? static_cast<const void*>(binary_.get()) : binary_->image.data();
  if (const CUresult result = device_->driver->module_load(&module_, image))
    device_->driver->fail(
        "cuModuleLoadData", result,
        fmt::format("loading {} for {} on {} ({})", binary_->entry, binary_->target, device_->name, device_->version));
}

Module::~Module() {
  if (!module_ || device_->driver->forked()) return;  // after fork() another thread's lock may stay held
  device_->driver->modules().forget(this, image().size());
  release_quietly(*device_, [&](const Driver& driver) { driver.module_unload(module_); });
}

void Module::allow_shared(CUfunction function, int bytes) const {
  const Driver& driver = *device_->driver;
  const std::lock_guard lock(mutex_);
  int now = 0;
  driver.must(driver.function_attribute, &now, static_cast<int>(kFuncMaxDynamic), function);
  if (now < bytes) driver.must(driver.set_function_attribute, function, static_cast<int>(kFuncMaxDynamic), bytes);
}

std::shared_ptr<const Module> Modules::load(const std::shared_ptr<Device::Impl>& device, const BinaryPtr& binary) {
  std::vector<std::shared_ptr<const Module>> looked_at;  // released after the lock, which a module's destructor takes
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = slots_.equal_range(binary->image.size());
  for (auto slot = begin; slot != end; ++slot) {
    auto module = slot->second.alive.lock();
    if (!module) continue;
    if (same_context(module->device(), *device) && module->image() == binary->image && module->host() == binary->host)
      return module;
    looked_at.push_back(std::move(module));
  }
  // Loading under the lock: two threads with one image load it once.
  const std::shared_ptr<const Module> module(
      new Module(device, binary));  // one allocation would outlive it in the slot
  slots_.emplace(binary->image.size(), Slot{module.get(), module});
  return module;
}

void Modules::forget(const Module* module, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = slots_.equal_range(bytes);
  const auto slot = std::find_if(begin, end, [&](const auto& s) { return s.second.module == module; });
  if (slot != end) slots_.erase(slot);
}

}  // namespace tilewright::jit
