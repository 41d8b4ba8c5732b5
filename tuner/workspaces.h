// SPDX-License-Identifier: Apache-2.0
// Device memory that launches of layers share tiles through: one for each stream, since launches of one stream follow
// each other, and one for all captures, since graphs are replayed beside the work of the stream they were captured on.
// Thread-safe.
#pragma once

#include <deque>
#include <mutex>
#include <shared_mutex>

#include <tilewright/memory.h>

namespace tilewright::tuner {

class Workspaces {
 public:
  // What the captures of a device will need. Not under capture, if it is new.
  void prepare(const Device& device, std::size_t bytes) { room(device, kCaptures, bytes); }

  // For a launch on a stream. Allocates at the first one; under capture it takes what prepare() made.
  void* of(const Device& device, Stream stream, std::size_t bytes);

 private:
  static constexpr int kOfStream = 0, kCaptures = 1;
  struct Room {
    const void* device;
    Stream stream;
    int kind;
    Memory memory;
  };
  void* room(const Device& device, int kind, std::size_t bytes, Stream stream = nullptr);
  void* find(const Device& device, int kind, std::size_t bytes, Stream stream) const;

  mutable std::shared_mutex mutex_;
  std::deque<Room> rooms_;  // never freed before the last Layer: launches and graphs may still use them
};

}  // namespace tilewright::tuner
