// SPDX-License-Identifier: Apache-2.0
// Shared by the readers: arithmetic on numbers from a file, and text from a file in messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <tilewright/byte_source.h>
#include <tilewright/error.h>

namespace tilewright::readers {

inline std::uint64_t checked_add(std::uint64_t a, std::uint64_t b, const std::string& field) {
  std::uint64_t r = 0;
  if (__builtin_add_overflow(a, b, &r))
    throw Error(ErrorCode::too_large, field, fmt::format("{} + {}", a, b), "must be less than 2^64");
  return r;
}

inline std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b, const std::string& field) {
  std::uint64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r))
    throw Error(ErrorCode::too_large, field, fmt::format("{} x {}", a, b), "must be less than 2^64");
  return r;
}

// Text of a stranger, made fit for a message.
inline std::string printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 64)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > 64 ? out + "..." : out;
}

template <class Tensors>
[[noreturn]] void throw_no_tensor(const Tensors& tensors, std::string_view name) {
  std::string some;
  for (std::size_t i = 0; i < tensors.size() && i < 16; ++i) some += (i ? ", " : "") + printable(tensors[i].name);
  throw Error(ErrorCode::invalid_argument, "tensor", printable(name),
              fmt::format("is not in the file, which has {} tensors: {}{}", tensors.size(), some,
                          tensors.size() > 16 ? ", ..." : ""));
}

// A part of a tensor.
template <class Tensor>
void read_part(const ByteSource& source, const Tensor& tensor, std::uint64_t first, std::span<std::byte> to) {
  if (first > tensor.bytes || to.size() > tensor.bytes - first)
    throw Error(ErrorCode::invalid_argument, fmt::format("part of tensor '{}'", printable(tensor.name)),
                fmt::format("{} bytes from {}", to.size(), first),
                fmt::format("must lie in the tensor, which has {} bytes", tensor.bytes));
  source.read(tensor.offset + first, to);
}

}  // namespace tilewright::readers
