// SPDX-License-Identifier: Apache-2.0
// libFuzzer: whatever the bytes, the reader throws Error or hands out tensors inside the file.
#include <tilewright/error.h>
#include <tilewright/gguf.h>

#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const tilewright::Gguf file(
        tilewright::ByteSource::memory(std::as_bytes(std::span<const std::uint8_t>(data, size))));
    for (const auto& tensor : file.tensors())
      if (file.read(tensor).size() != tensor.bytes || tensor.rows() < 1) __builtin_trap();
  } catch (const tilewright::Error& e) {
    if (e.code() == tilewright::ErrorCode::io) __builtin_trap();  // a bound that was checked too late
  }
  return 0;
}
