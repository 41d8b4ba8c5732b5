// SPDX-License-Identifier: Apache-2.0
// A compiler's relocatable object becomes functions of this process. What is taken is what our kernels need and no
// more: code and constants that refer to each other. Whatever else an object may ask for is refused by name: undefined
// symbols, memory that can be written, thread-local memory, initializers, other relocations, anything out of range.
// Usable from any thread.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tilewright::jit::cpu {

inline constexpr std::size_t kMostObjectBytes = 8u << 20;  // a kernel's has some thousand

// An object with its references resolved, for any address: code first, constants from the next page on.
struct Object {
  std::vector<std::byte> bytes;
  std::size_t code_bytes = 0;                    // whole pages
  int machine = 0;                               // ELF's number: EM_X86_64 or EM_AARCH64
  std::map<std::string, std::size_t> functions;  // global ones, by name: where they begin in `bytes`
};
// Throws Error (invalid_argument, field "binary.image") saying what was refused.
Object read_object(std::span<const std::byte> image);
// What read_object() says; empty if the object may be loaded.
std::string object_defect(std::span<const std::byte> image);

// The object in memory: written first, then made executable (and read-only), never both at once.
class Code {
 public:
  // Throws Error (driver_failed) if the system grants no such memory, Error (invalid_argument, "binary.image") if the
  // object is for another machine.
  explicit Code(const Object& object);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  void* at(const std::string& function) const;  // null if there is none

 private:
  std::map<std::string, std::size_t> functions_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tilewright::jit::cpu
