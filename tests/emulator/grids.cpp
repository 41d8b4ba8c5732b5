// SPDX-License-Identifier: Apache-2.0
#include "emulator/grids.h"

#include <algorithm>
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
void written_before(std::initializer_list<std::vector<u8>*> bytes) {
  std::vector<std::pair<std::vector<u8>*, std::vector<u8>>> later;
  for (std::vector<u8>* b : bytes) {
    later.emplace_back(b, *b);
    std::fill(b->begin(), b->end(), u8{0xff});
  }
  written_before([later] {
    for (const auto& [to, from] : later) std::copy(from.begin(), from.end(), to->begin());  // where it was: kernels have its address
  });
}
bool written() {
  std::lock_guard lock(mutex);
  return !pending;
}

void write() {
  std::lock_guard lock(mutex);
  if (const auto last = std::exchange(pending, {})) last();
}

void wait_prerequisite_grids() { Worker::get().await_grids(); }
void launch_dependent_grids() { Worker::get(); }

}  // namespace tw::emu
