// SPDX-License-Identifier: Apache-2.0
// ByteSource: the source of a reader's bytes. It reads at positions and copies. So if a file shrinks while it is open,
// this is an Error, not a signal as with mmap. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <tilewright/export.h>

namespace tilewright {

class TILEWRIGHT_EXPORT ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `to` from `offset`. Throws Error (io) if the bytes are not all there.
  virtual void read(std::uint64_t offset, std::span<std::byte> to) const = 0;

  // A regular file; anything else (a FIFO, a device, a directory) is refused at once. Throws Error (io).
  static std::unique_ptr<ByteSource> file(const std::string& path);
  static std::unique_ptr<ByteSource> memory(std::span<const std::byte> bytes);  // which must outlive the source
};

}  // namespace tilewright
