// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' format "pack-quantized" (src/compressed_tensors/compressors/quantized_compressors/
// pack_quantized.py: compression_param_info(), pack_to_int32(); quantization/lifecycle/forward.py: _dequantize(), and
// that a g_idx with an entry of -1 was never set). Codes and zero points are signed and both stored plus 8, which
// cancels.
#include "templates/formats/checkpoint/layout.h"

namespace tilewright::checkpoint {
namespace {

Extents codes_extents(std::int64_t n, std::int64_t k) { return {n, k / 8}; }
Extents zeros_extents(std::int64_t n, std::int64_t groups) { return {(n + 7) / 8, groups}; }

void read_codes(const std::byte* from, std::int64_t, std::int64_t k, const Strip<std::uint8_t>& to) {
  for (std::int64_t row = 0; row < to.rows; ++row)
    for (std::int64_t word = 0; word < k / 8; ++word)
      unpack_nibbles(load<std::uint32_t>(from, (to.first + row) * (k / 8) + word),
                     to.codes + row * to.pitch + 8 * word);
}
void write_codes(const Strip<const std::uint8_t>& from, std::int64_t, std::int64_t k, std::byte* to) {
  for (std::int64_t row = 0; row < from.rows; ++row)
    for (std::int64_t word = 0; word < k / 8; ++word)
      store(to, (from.first + row) * (k / 8) + word, pack_nibbles(from.codes + row * from.pitch + 8 * word));
}

void read_zeros(const std::byte* from, std::int64_t n, std::int64_t groups, std::uint8_t* to) {
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t g = 0; g < groups; ++g)
      to[row * groups + g] = load<std::uint32_t>(from, row / 8 * groups + g) >> (4 * (row % 8)) & 15u;
}
void write_zeros(const std::uint8_t* from, std::int64_t n, std::int64_t groups, std::byte* to) {
  for (std::int64_t row = 0; row < n; row += 8)
    for (std::int64_t g = 0; g < groups; ++g) {
      std::uint32_t word = 0;  // rows beyond the last: 0
      for (std::int64_t i = 0; i < 8 && row + i < n; ++i)
        word |= static_cast<std::uint32_t>(from[(row + i) * groups + g]) << (4 * i);
      store(to, row / 8 * groups + g, word);
    }
}

}  // namespace

constinit const Layout kCompressedTensors = {.name = "compressed_tensors",
                                             .codes = "weight_packed",
                                             .zeros = "weight_zero_point",
                                             .scales = "weight_scale",
                                             .g_idx = "weight_g_idx",
                                             .codes_shape = "n, k / 8",
                                             .zeros_shape = "n / 8, k / group",
                                             .scales_shape = "n, k / group",
                                             .codes_extents = codes_extents,
                                             .zeros_extents = zeros_extents,
                                             .zeros_optional = true,
                                             .scales_by_group = false,
                                             .g_idx_always = false,
                                             .g_idx_negative = true,
                                             .n_multiple = 1,
                                             .read_codes = read_codes,
                                             .write_codes = write_codes,
                                             .read_wide_codes = nullptr,
                                             .write_wide_codes = nullptr,
                                             .read_wide_zeros = nullptr,
                                             .write_wide_zeros = nullptr,
                                             .read_zeros = read_zeros,
                                             .write_zeros = write_zeros};

}  // namespace tilewright::checkpoint
