// SPDX-License-Identifier: Apache-2.0
// libFuzzer: whatever the bytes, the loader throws Error or has an object whose functions are code; what is loaded is
// not run.
#include <tilewright/error.h>

#include <cstdint>
#include <span>

#include "jit/cpu/object.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto object = tilewright::jit::cpu::read_object(std::as_bytes(std::span<const std::uint8_t>(data, size)));
    for (const auto& [name, begin] : object.functions)
      if (begin >= object.code_bytes) __builtin_trap();
    const tilewright::jit::cpu::Code code(object);
    for (const auto& [name, begin] : object.functions)
      if (!code.at(name)) __builtin_trap();
  } catch (const tilewright::Error& e) {
    if (e.code() != tilewright::ErrorCode::invalid_argument || e.allowed().empty()) __builtin_trap();
  }
  return 0;
}
