// SPDX-License-Identifier: Apache-2.0
// Hashing and the text form of keys. Free-threaded values.
//
// Transcript grammar (docs/internals/cache-format.md):
//   transcript = { tag "=" value "\n" }
//   A byte below 0x20, 0x7f, a backslash, and in a tag also "=", is written "\xNN". The mapping is one to one, so two
//   keys are equal exactly when their transcripts are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tilewright/store.h>

namespace tilewright::cache {

// FIPS 180-4. update() any number of times, then digest() once.
class Sha256 {
 public:
  enum class Rounds { fastest, portable };
  explicit Sha256(Rounds rounds = Rounds::fastest) : rounds_(rounds) {}
  void update(const void* data, std::size_t bytes);
  std::array<std::uint8_t, 32> digest();
  std::string hex();

 private:
  void block(const std::uint8_t* data);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> buffer_{};
  std::uint64_t bytes_ = 0;
  Rounds rounds_;
};

// SHA-256 over fields, each preceded by its length in 8 little-endian bytes: no two field lists collide by shifting
// bytes from one field to the next. `domain` keeps hashes of different row types apart.
class FieldHash {
 public:
  explicit FieldHash(std::string_view domain) { add(domain); }
  FieldHash& add(std::string_view field);
  FieldHash& add(std::span<const std::byte> field);
  FieldHash& add(std::int64_t value);
  FieldHash& add(double value);  // by bit pattern
  std::string hex() { return hash_.hex(); }

 private:
  Sha256 hash_;
};

// "\xNN" escapes for control characters, the backslash, and every character of `also`.
std::string escape(std::string_view text, std::string_view also = {});
std::optional<std::string> unescape(std::string_view text);

// Hash of a binary's key without its fields "compiler": what builds of one kernel by several compilers share.
std::string kernel_hash(const Key& key);

// The first value with this tag; empty if there is none. Reads no more of the transcript than it must.
std::string field_of(std::string_view transcript, std::string_view tag);

// Inverse of Key::transcript(); nothing for any other text.
std::optional<Key> parse_transcript(std::string_view text);

}  // namespace tilewright::cache
