// SPDX-License-Identifier: Apache-2.0
// AWQ, AutoAWQ's version "gemm" (awq/modules/linear/gemm.py: buffers, from_linear() and its order_map;
// awq/utils/packing_utils.py: AWQ_ORDER, dequantize_gemm()). Packed along output features in an order of its own; zero
// points as they are.
#include "templates/formats/checkpoint/layout.h"

namespace tilewright::checkpoint {
namespace {

constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // nibble i holds the i-th of these

Extents codes_extents(std::int64_t n, std::int64_t k) { return {k, n / 8}; }
Extents zeros_extents(std::int64_t n, std::int64_t groups) { return {groups, n / 8}; }

void read_codes(const std::byte* from, std::int64_t n, std::int64_t k, const Strip<std::uint8_t>& to) {
  for (std::int64_t col = 0; col < k; ++col)
    for (std::int64_t row = 0; row < to.rows; row += 8) {
      const auto word = load<std::uint32_t>(from, col * (n / 8) + (to.first + row) / 8);
      for (int i = 0; i < 8; ++i)
        to.codes[(row + kOrder[i]) * to.pitch + col] = static_cast<std::uint8_t>(word >> (4 * i) & 15u);
    }
}
void write_codes(const Strip<const std::uint8_t>& from, std::int64_t n, std::int64_t k, std::byte* to) {
  for (std::int64_t col = 0; col < k; ++col)
    for (std::int64_t row = 0; row < from.rows; row += 8) {
      std::uint32_t word = 0;
      for (int i = 0; i < 8; ++i)
        word |= static_cast<std::uint32_t>(from.codes[(row + kOrder[i]) * from.pitch + col]) << (4 * i);
      store(to, col * (n / 8) + (from.first + row) / 8, word);
    }
}

}  // namespace

constinit const Layout kAwq = {
    .name = "awq",
    .codes = "qweight",
    .zeros = "qzeros",
    .scales = "scales",
    .g_idx = nullptr,
    .codes_shape = "k, n / 8",
    .zeros_shape = "k / group, n / 8",
    .scales_shape = "k / group, n",
    .codes_extents = codes_extents,
    .zeros_extents = zeros_extents,
    .zeros_optional = false,
    .scales_by_group = true,
    .g_idx_always = false,
    .g_idx_negative = false,
    .n_multiple = 8,
    .read_codes = read_codes,
    .write_codes = write_codes,
    .read_wide_codes = nullptr,
    .write_wide_codes = nullptr,
    .read_wide_zeros = nullptr,
    .write_wide_zeros = nullptr,
    .read_zeros = [](const std::byte* from, std::int64_t n, std::int64_t groups,
                     std::uint8_t* to) { checkpoint::read_zeros(from, n, groups, kOrder, 0, to); },
    .write_zeros = [](const std::uint8_t* from, std::int64_t n, std::int64_t groups,
                      std::byte* to) { checkpoint::write_zeros(from, n, groups, kOrder, 0, to); }};

}  // namespace tilewright::checkpoint
