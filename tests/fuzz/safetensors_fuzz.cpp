// SPDX-License-Identifier: Apache-2.0
// libFuzzer: whatever the bytes, the reader throws Error or hands out tensors that fill the file without a gap.
#include <tilewright/error.h>
#include <tilewright/safetensors.h>

#include <cstdint>
#include <cstring>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const tilewright::Safetensors file(
        tilewright::ByteSource::memory(std::as_bytes(std::span<const std::uint8_t>(data, size))));
    std::uint64_t header = 0;
    std::memcpy(&header, data, sizeof header);
    std::uint64_t next = sizeof header + header;
    for (const auto& tensor : file.tensors()) {
      if (tensor.offset != next || file.read(tensor).size() != tensor.bytes) __builtin_trap();
      next += tensor.bytes;
    }
    if (next != size) __builtin_trap();
  } catch (const tilewright::Error& e) {
    if (e.code() == tilewright::ErrorCode::io) __builtin_trap();  // a bound that was checked too late
  }
  return 0;
}
