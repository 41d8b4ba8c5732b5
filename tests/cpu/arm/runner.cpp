// SPDX-License-Identifier: Apache-2.0
// Runs a kernel's object on AArch64, by the library's own loader: runner OBJECT JOB RESULT. JOB, as arm_test.cpp writes
// it, has seven numbers of 64 bits: blocks of the first phase and of the second, bytes of scratch memory, of arguments
// and of constants, the number of buffers and of places; the arguments and constants; for each buffer its bytes and
// what it holds; for each place its offset in the arguments and the buffer that it points to. RESULT gets the buffers.
#include <tilewright/error.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "jit/cpu/object.h"

namespace {

std::vector<std::byte> file(const char* name) {
  std::ifstream in(name, std::ios::binary);
  std::vector<char> all((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::byte> bytes(all.size());
  std::memcpy(bytes.data(), all.data(), all.size());
  return bytes;
}

struct Memory {
  explicit Memory(std::size_t bytes) : at(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64))) {}
  ~Memory() { std::free(at); }
  Memory(Memory&& other) noexcept : at(std::exchange(other.at, nullptr)) {}
  std::byte* at;
};

}  // namespace

int main(int, char** argv) try {
  const auto object = file(argv[1]), job = file(argv[2]);
  const std::byte* at = job.data();
  const auto number = [&] {
    std::int64_t value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  };
  const auto first = number(), run = number(), scratch_bytes = number(), args_bytes = number(),
             constants_bytes = number(), count = number(), places = number();
  const auto take = [&](std::int64_t bytes) {
    Memory m(static_cast<std::size_t>(bytes));
    std::memcpy(m.at, at, static_cast<std::size_t>(bytes));
    at += bytes;
    return m;
  };
  const Memory args = take(args_bytes), constants = take(constants_bytes),
               scratch(static_cast<std::size_t>(scratch_bytes));
  std::vector<Memory> buffers;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < count; ++i) {
    sizes.push_back(number());
    buffers.push_back(take(sizes.back()));
  }
  for (std::int64_t i = 0; i < places; ++i) {
    const auto offset = number(), buffer = number();
    std::memcpy(args.at + offset, &buffers[static_cast<std::size_t>(buffer)].at, sizeof(void*));
  }
  using Function = void(const void*, const void*, void*, std::int64_t);
  const tilewright::jit::cpu::Code code(tilewright::jit::cpu::read_object(object));
  for (const char* name : {"tilewright_kernel_first", "tilewright_kernel"}) {
    auto* const function = reinterpret_cast<Function*>(code.at(name));
    if (!function) throw std::runtime_error(std::string("no function ") + name);
    const bool is_first = std::strcmp(name, "tilewright_kernel") != 0;
    for (std::int64_t i = 0; i < (is_first ? first : run); ++i) function(args.at, constants.at, scratch.at, i);
  }
  std::ofstream out(argv[3], std::ios::binary);
  for (std::size_t i = 0; i < buffers.size(); ++i) out.write(reinterpret_cast<const char*>(buffers[i].at), sizes[i]);
  return out.flush() ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
