// SPDX-License-Identifier: Apache-2.0
// Pseudo-random content that is valid in a format: what a model's tensors look like, not noise in their bytes.
// Deterministic in the seed on every host. Free-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

// splitmix64: one multiply-xor chain per number, equal everywhere (std::normal_distribution is not).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }  // [0, 1)
  float normal();                                                          // about N(0, 1)

 private:
  std::uint64_t state_;
};

struct Content {
  Format format;
  std::int64_t rows = 0, cols = 0;
  float deviation = 1;          // of the values
  bool inverse_global = false;  // the tensor-wide scale divides
};

// The tensor-wide scale of such content; every seed has the same, so that streams can be filled one by one.
float global_of(const Content& content);

// The seed of one matrix among those of a task: two of one format and size must not hold the same numbers, or a kernel
// that confuses them passes every check.
std::uint64_t seed_of(std::uint64_t seed, std::string_view matrix);

// Fills `bytes` with stream `stream` (index into the format's streams) of content. Streams filled with one seed belong
// together. Only a pool of distinct rows is encoded; the matrix repeats them in a scrambled order.
void fill_stream(const Content& content, int stream, std::uint64_t seed, std::span<std::byte> bytes);

// How content of many equal items is made from a pool of distinct ones.
std::int64_t pool_size(std::int64_t items, std::int64_t elements_per_item);
void repeat_pool(std::span<const std::byte> from, std::int64_t pool, std::int64_t items, std::size_t item_bytes,
                 std::span<std::byte> to);

}  // namespace tilewright
