// SPDX-License-Identifier: Apache-2.0
#include "emulator/grids.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "backends/cuda/ptx.cuh"
#include "emulator/scheduler.h"

namespace tw::emu {
namespace {
std::mutex mutex;
std::vector<std::pair<std::vector<u8>*, std::vector<u8>>> pending;  // where, and what
}  // namespace

void written_before(std::initializer_list<std::vector<u8>*> bytes) {
  std::lock_guard lock(mutex);
  pending.clear();
  for (std::vector<u8>* b : bytes) {
    pending.emplace_back(b, *b);
    std::fill(b->begin(), b->end(), u8{0xff});
  }
}
bool written() {
  std::lock_guard lock(mutex);
  return pending.empty();
}

void write() {
  std::lock_guard lock(mutex);
  for (const auto& [to, from] : pending)
    std::copy(from.begin(), from.end(), to->begin());  // in place: kernels have its address
  pending.clear();
}

void wait_prerequisite_grids() { Worker::get().await_grids(); }
void launch_dependent_grids() { Worker::get(); }

}  // namespace tw::emu
