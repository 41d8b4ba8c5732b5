// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of jit/: targets, small sources, and the real compiler. They never skip: without libnvrtc they
// fail, because a build that cannot compile a kernel has not been tested.
#pragma once

#include <tilewright/error.h>
#include <tilewright/kernel.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/catch.h"

namespace tilewright::test {

// The libnvrtc that ./dev found; empty: the library's own search.
inline CompileOptions real_compiler() {
  const char* path = std::getenv("TILEWRIGHT_NVRTC");
  return {.nvrtc = path ? path : "", .compiler_cache = false};
}

inline Arch target(const char* name, int major, int minor) {
  Arch arch{};
  arch.name = name;
  arch.major = major;
  arch.minor = minor;
  return arch;
}
inline Arch sm_90a() { return target("sm_90a", 9, 0); }
inline Arch sm_80() { return target("sm_80", 8, 0); }

inline Source source_of(std::string text, std::string entry = "k") {
  Source source;
  source.name = "test/" + entry;
  source.text = std::move(text);
  source.entry = std::move(entry);
  source.plan.threads = 32;
  return source;
}

// Runs `action`, which must throw an Error of `code`, and gives that error.
inline Error error_of(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(std::string(to_string(error.code())) == to_string(code));
    return error;
  }
  FAIL("expected Error " << to_string(code));
  std::abort();
}

inline bool mentions(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

// Names of a kernel text's device variables in a cubin (ELF): the symbols that are objects, without the compiler's own,
// which some targets have (.nv.reservedSmem.cap).
inline std::vector<std::string> device_variables(const std::vector<std::byte>& image) {
  const auto read = [&]<class T>(std::size_t offset, T value) {
    REQUIRE(offset + sizeof(T) <= image.size());
    std::memcpy(&value, image.data() + offset, sizeof(T));
    return value;
  };
  const std::size_t table = read(0x28, std::uint64_t{}), size = read(0x3a, std::uint16_t{}),
                    count = read(0x3c, std::uint16_t{});
  const auto offset = [&](std::size_t header) { return read(header + 0x18, std::uint64_t{}); };
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t header = table + i * size;
    if (read(header + 4, std::uint32_t{}) != 2) continue;  // SHT_SYMTAB
    const std::size_t strings = offset(table + read(header + 0x28, std::uint32_t{}) * size);
    const std::size_t begin = offset(header), bytes = read(header + 0x20, std::uint64_t{});
    for (std::size_t at = begin; at < begin + bytes; at += 24) {
      if ((read(at + 4, std::uint8_t{}) & 15) != 1) continue;  // STT_OBJECT
      const std::string name(reinterpret_cast<const char*>(image.data()) + strings + read(at, std::uint32_t{}));
      if (!name.starts_with(".nv.") && !name.starts_with("__nv_")) names.push_back(name);
    }
  }
  return names;
}

}  // namespace tilewright::test
