// SPDX-License-Identifier: Apache-2.0
#include "emulator/grids.h"

#include <mutex>
#include <utility>

#include "core/ptx.cuh"
#include "emulator/scheduler.h"

namespace tw::emu {
namespace {
std::mutex mutex;
std::function<void()> pending;
}  // namespace

void written_before(std::function<void()> write) {
  std::lock_guard lock(mutex);
  pending = std::move(write);
}
bool written() {
  std::lock_guard lock(mutex);
  return !pending;
}

void wait_prerequisite_grids() {
  Worker::get();
  std::lock_guard lock(mutex);
  if (const auto write = std::exchange(pending, {})) write();
}
void launch_dependent_grids() { Worker::get(); }

}  // namespace tw::emu
