// SPDX-License-Identifier: Apache-2.0
// GPTQ, as AutoGPTQ writes it (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py: buffers and pack(); g_idx in
// qlinear_cuda.py), and GPTQModel's second version, which differs in the zero points (gptqmodel/utils/model.py,
// convert_gptq_v1_to_v2_format_module).
//
// Version 1 stores zero - 1. GPTQModel takes 0x11111111 from each word of qzeros when it writes and adds it when it
// reads. The same here, modulo 2^32: exact for every word so written, also where a zero point is 0 and borrows from the
// next; readers that add 1 to each nibble read such words wrongly. Where no zero point is 0 nothing borrows, and all
// agree. Codes of 2 and 8 bits likewise. Of 3 bits, where 32 codes are three words, 1 is added to each zero point as
// AutoGPTQ does: GPTQModel's constants for them belong to other words than those that have the bits.
#include "templates/formats/checkpoint/layout.h"

namespace tilewright::checkpoint {
namespace {

constexpr int kInOrder[8] = {0, 1, 2, 3, 4, 5, 6, 7};

Extents codes_extents(std::int64_t n, std::int64_t k) { return {k / 8, n}; }
Extents zeros_extents(std::int64_t n, std::int64_t groups) { return {groups, n / 8}; }

void read_codes(const std::byte* from, std::int64_t n, std::int64_t k, const Strip<std::uint8_t>& to) {
  for (std::int64_t word = 0; word < k / 8; ++word)
    for (std::int64_t row = 0; row < to.rows; ++row)
      unpack_nibbles(load<std::uint32_t>(from, word * n + to.first + row), to.codes + row * to.pitch + 8 * word);
}
void write_codes(const Strip<const std::uint8_t>& from, std::int64_t n, std::int64_t k, std::byte* to) {
  for (std::int64_t word = 0; word < k / 8; ++word)
    for (std::int64_t row = 0; row < from.rows; ++row)
      store(to, word * n + from.first + row, pack_nibbles(from.codes + row * from.pitch + 8 * word));
}

// Field i of `bits` bits, of words that are `pitch` apart.
std::uint32_t field(const std::byte* from, std::int64_t first, std::int64_t pitch, int bits, std::int64_t i) {
  const std::int64_t word = i * bits / 32;
  const int shift = static_cast<int>(i * bits % 32);
  std::uint64_t v = load<std::uint32_t>(from, first + word * pitch);
  if (shift + bits > 32) v |= std::uint64_t{load<std::uint32_t>(from, first + (word + 1) * pitch)} << 32;
  return static_cast<std::uint32_t>(v >> shift) & ((1u << bits) - 1);
}
void read_wide_codes(const std::byte* from, int bits, std::int64_t n, std::int64_t k, const Strip<std::uint8_t>& to) {
  for (std::int64_t col = 0; col < k; ++col)
    for (std::int64_t row = 0; row < to.rows; ++row)
      to.codes[row * to.pitch + col] = static_cast<std::uint8_t>(field(from, to.first + row, n, bits, col));
}
void put_field(std::byte* to, std::int64_t first, std::int64_t pitch, int bits, std::int64_t i, std::uint32_t value) {
  const std::int64_t word = first + i * bits / 32 * pitch;
  const int shift = static_cast<int>(i * bits % 32);
  store(to, word, load<std::uint32_t>(to, word) | value << shift);
  if (shift + bits > 32) store(to, word + pitch, load<std::uint32_t>(to, word + pitch) | value >> (32 - shift));
}
void write_wide_codes(const Strip<const std::uint8_t>& from, int bits, std::int64_t n, std::int64_t k, std::byte* to) {
  for (std::int64_t col = 0; col < k; ++col)
    for (std::int64_t row = 0; row < from.rows; ++row)
      put_field(to, from.first + row, n, bits, col, from.codes[row * from.pitch + col]);
}
// The inverse of read_wide_zeros(), for zero points that it can return.
template <bool reduced>
void write_wide_zeros(const std::uint8_t* from, int bits, std::int64_t n, std::int64_t groups, std::byte* to) {
  const std::int64_t words = n * bits / 32;
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t row = 0; row < n; ++row)
      put_field(to, g * words, 1, bits, row, from[row * groups + g] - (reduced && bits == 3 ? 1u : 0u));
    for (std::int64_t word = g * words; reduced && bits != 3 && word < (g + 1) * words; ++word)
      store(to, word, load<std::uint32_t>(to, word) - (bits == 2 ? 0x55555555u : 0x01010101u));
  }
}
template <bool reduced>
void read_wide_zeros(const std::byte* from, int bits, std::int64_t n, std::int64_t groups, std::uint8_t* to) {
  const std::int64_t words = n * bits / 32;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t row = 0; row < n; ++row) {
      std::uint32_t zero = 0;
      if (bits == 3) {
        zero = field(from, g * words, 1, bits, row) + reduced;
      } else {
        const std::uint32_t ones = bits == 2 ? 0x55555555u : 0x01010101u;
        const std::uint32_t word = load<std::uint32_t>(from, g * words + row * bits / 32) + (reduced ? ones : 0);
        zero = word >> (row * bits % 32) & ((1u << bits) - 1);
      }
      to[row * groups + g] = static_cast<std::uint8_t>(zero);
    }
}

template <std::uint32_t reduced>
constexpr Layout layout(const char* name) {
  return {.name = name,
          .codes = "qweight",
          .zeros = "qzeros",
          .scales = "scales",
          .g_idx = "g_idx",
          .codes_shape = "k / 8, n",
          .zeros_shape = "k / group, n / 8",
          .scales_shape = "k / group, n",
          .codes_extents = codes_extents,
          .zeros_extents = zeros_extents,
          .zeros_optional = false,
          .scales_by_group = true,
          .g_idx_always = true,
          .g_idx_negative = false,
          .n_multiple = 8,
          .read_codes = read_codes,
          .write_codes = write_codes,
          .read_wide_codes = read_wide_codes,
          .write_wide_codes = write_wide_codes,
          .read_wide_zeros = read_wide_zeros<reduced != 0>,
          .write_wide_zeros = write_wide_zeros<reduced != 0>,
          .read_zeros = [](const std::byte* from, std::int64_t n, std::int64_t groups,
                           std::uint8_t* to) { checkpoint::read_zeros(from, n, groups, kInOrder, reduced, to); },
          .write_zeros = [](const std::uint8_t* from, std::int64_t n, std::int64_t groups,
                            std::byte* to) { checkpoint::write_zeros(from, n, groups, kInOrder, reduced, to); }};
}

}  // namespace

constinit const Layout kGptq = layout<0x11111111u>("gptq");
constinit const Layout kGptqV2 = layout<0>("gptq_v2");

}  // namespace tilewright::checkpoint
