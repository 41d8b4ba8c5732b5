// SPDX-License-Identifier: Apache-2.0
#include "tuner/workspaces.h"

#include "jit/device.h"

namespace tilewright::tuner {

void* Workspaces::of(const Device& device, Stream stream, std::size_t bytes) {
  const bool captured = jit::capturing(device, stream);
  return room(device, captured ? kCaptures : kOfStream, bytes, captured ? nullptr : stream);
}

void* Workspaces::find(const Device& device, int kind, std::size_t bytes, Stream stream) const {
  for (const Room& room : rooms_)
    if (room.stream == stream && room.kind == kind && room.device == device.impl().get() && room.memory.size() >= bytes)
      return room.memory.data();
  return nullptr;
}

void* Workspaces::room(const Device& device, int kind, std::size_t bytes, Stream stream) {
  {
    const std::shared_lock lock(mutex_);
    if (void* found = find(device, kind, bytes, stream)) return found;
  }
  const std::unique_lock lock(mutex_);
  if (void* found = find(device, kind, bytes, stream)) return found;
  Memory memory(device, bytes);
  memory.fill(0);
  device.synchronize();  // before any stream uses it
  rooms_.push_back({device.impl().get(), stream, kind, std::move(memory)});
  return rooms_.back().memory.data();
}

}  // namespace tilewright::tuner
