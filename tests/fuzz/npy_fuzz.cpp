// SPDX-License-Identifier: Apache-2.0
// libFuzzer: whatever the bytes, the reader throws Error or hands out an array that fills the file to its end.
#include <tilewright/error.h>
#include <tilewright/npy.h>

#include <cstdint>
#include <span>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const tilewright::Npy file(
        tilewright::ByteSource::memory(std::as_bytes(std::span<const std::uint8_t>(data, size))));
    if (file.offset() + file.bytes() != size) __builtin_trap();
    std::uint64_t bytes = file.dtype() == "<f8" ? 8 : file.dtype() == "<f4" ? 4 : 2;
    for (const std::int64_t extent : file.shape()) bytes *= static_cast<std::uint64_t>(extent);
    if (bytes != file.bytes()) __builtin_trap();
    std::vector<std::byte> all(file.bytes());
    file.read(0, all);
  } catch (const tilewright::Error& e) {
    if (e.code() == tilewright::ErrorCode::io) __builtin_trap();  // a bound that was checked too late
  }
  return 0;
}
