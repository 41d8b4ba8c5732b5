// SPDX-License-Identifier: Apache-2.0
// How one kind of checkpoint packs its codes and zero points: what each file of this folder says.
#pragma once

#include <tilewright/import.h>

#include <bit>
#include <cstring>

namespace tilewright::checkpoint {

static_assert(std::endian::native == std::endian::little);

struct Extents {
  std::int64_t rows, cols;
};

// Some rows of codes, a byte each, `pitch` bytes from row to row. first is a multiple of 8.
template <class Byte>
struct Strip {
  Byte* codes;
  std::int64_t pitch, first, rows;
};

struct Layout {
  const char* name;
  const char *codes, *zeros, *scales, *g_idx;  // what the tensors are called; g_idx: null if there is none
  const char *codes_shape, *zeros_shape, *scales_shape;
  Extents (*codes_extents)(std::int64_t n, std::int64_t k);
  Extents (*zeros_extents)(std::int64_t n, std::int64_t groups);
  bool zeros_optional;   // none: all of them are 8
  bool scales_by_group;  // [groups, n], else [n, groups]
  bool g_idx_always;     // written even if columns keep their places
  bool g_idx_negative;   // one that has an entry of -1 says nothing
  std::int64_t n_multiple;
  void (*read_codes)(const std::byte* from, std::int64_t n, std::int64_t k, const Strip<std::uint8_t>& to);
  void (*write_codes)(const Strip<const std::uint8_t>& from, std::int64_t n, std::int64_t k, std::byte* to);
  // Of codes that are not of 4 bits, where the packing has them; else null. Words go along k, those of zero points
  // along n; code i is bits i * bits of the words taken together, lowest first.
  void (*read_wide_codes)(const std::byte* from, int bits, std::int64_t n, std::int64_t k,
                          const Strip<std::uint8_t>& to);
  void (*write_wide_codes)(const Strip<const std::uint8_t>& from, int bits, std::int64_t n, std::int64_t k,
                           std::byte* to);  // into zeros
  void (*read_wide_zeros)(const std::byte* from, int bits, std::int64_t n, std::int64_t groups, std::uint8_t* to);
  void (*write_wide_zeros)(const std::uint8_t* from, int bits, std::int64_t n, std::int64_t groups, std::byte* to);
  // One byte for each row and group, [n, groups].
  void (*read_zeros)(const std::byte* from, std::int64_t n, std::int64_t groups, std::uint8_t* to);
  void (*write_zeros)(const std::uint8_t* from, std::int64_t n, std::int64_t groups, std::byte* to);
};

extern const Layout kGptq, kGptqV2, kAwq, kCompressedTensors;

template <class T>
T load(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store(std::byte* to, std::int64_t index, T value) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// The eight nibbles of a word, lowest first, to eight bytes and back.
inline void unpack_nibbles(std::uint32_t word, std::uint8_t* to) {
  std::uint64_t v = word;
  v = (v | v << 16) & 0x0000ffff0000ffffu;
  v = (v | v << 8) & 0x00ff00ff00ff00ffu;
  v = (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
  std::memcpy(to, &v, 8);
}
inline std::uint32_t pack_nibbles(const std::uint8_t* from) {
  std::uint64_t v;
  std::memcpy(&v, from, 8);
  v = (v | v >> 4) & 0x00ff00ff00ff00ffu;
  v = (v | v >> 8) & 0x0000ffff0000ffffu;
  return static_cast<std::uint32_t>(v | v >> 16);
}

// Zero points [groups, n / 8] as GPTQ and AWQ have them: nibble i of word [g, c], less what the words were reduced by,
// is that of row 8c + order[i].
void read_zeros(const std::byte* from, std::int64_t n, std::int64_t groups, const int (&order)[8],
                std::uint32_t reduced, std::uint8_t* to);
void write_zeros(const std::uint8_t* from, std::int64_t n, std::int64_t groups, const int (&order)[8],
                 std::uint32_t reduced, std::byte* to);

}  // namespace tilewright::checkpoint
