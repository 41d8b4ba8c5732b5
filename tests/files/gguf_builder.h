// SPDX-License-Identifier: Apache-2.0
// Writes GGUF bytes field by field, right or wrong on purpose.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright::test {

class GgufBytes {
 public:
  template <class T>
  GgufBytes& put(T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof(T));
    return *this;
  }
  GgufBytes& string(std::string_view text) {
    put<std::uint64_t>(text.size());
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), p, p + text.size());
    return *this;
  }
  GgufBytes& head(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    return put<std::uint32_t>(0x46554747).put(version).put(tensors).put(keys);
  }
  GgufBytes& key_u32(std::string_view key, std::uint32_t value) { return string(key).put<std::uint32_t>(4).put(value); }
  GgufBytes& key_string(std::string_view key, std::string_view value) {
    return string(key).put<std::uint32_t>(8).string(value);
  }
  GgufBytes& info(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                  std::uint64_t offset) {
    string(name).put<std::uint32_t>(static_cast<std::uint32_t>(dims.size()));
    for (std::uint64_t d : dims) put(d);
    return put(type).put(offset);
  }
  GgufBytes& align(std::size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  GgufBytes& data(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) put(static_cast<unsigned char>(i));
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// A right file with every kind of field.
inline std::vector<std::byte> sample_gguf() {
  GgufBytes b;
  b.head(3, 6).key_string("general.architecture", "bert").key_u32("general.alignment", 64);
  b.string("a.array").put<std::uint32_t>(9).put<std::uint32_t>(5).put<std::uint64_t>(3).put(1).put(2).put(3);
  b.string("a.strings").put<std::uint32_t>(9).put<std::uint32_t>(8).put<std::uint64_t>(2).string("x").string("");
  b.string("a.bool").put<std::uint32_t>(7).put<std::uint8_t>(1);
  b.string("a.float").put<std::uint32_t>(6).put(0.5f);
  b.info("w", {64, 3}, 2, 0).info("x", {32}, 8, 128).info("y", {2, 2, 2, 2}, 0, 192).align(64).data(256);
  return b.bytes();
}

}  // namespace tilewright::test
