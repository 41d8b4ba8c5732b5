// SPDX-License-Identifier: Apache-2.0
// BitNet b1.58 weights as transformers packs them (src/transformers/integrations/bitnet.py: pack_weights(),
// BitLinear.post_quant_process(), AutoBitLinear.forward()): bits 2i and 2i + 1 of byte [r, c] are the code of row
// r + i ceil(n / 4), column c. In ternary_row four neighbouring columns share a byte.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "support/must_be.h"
#include "templates/common/exact_floats.h"
#include "templates/formats/checkpoint/layout.h"

namespace tilewright {
namespace {

void check_bytes(const char* name, std::size_t have, std::int64_t want) {
  if (static_cast<std::int64_t>(have) != want)
    throw Error(ErrorCode::invalid_argument, name, fmt::format("{} bytes", have),
                fmt::format("must have {} bytes", want));
}

}  // namespace

void import_bitnet(const BitnetWeight& w, std::span<std::byte> data, std::span<std::byte> scales) {
  const auto check_extent = [](const char* name, std::int64_t value, std::int64_t multiple) {
    if (value < 1 || value > INT32_MAX || value % multiple)
      throw must_be(name, value, fmt::format("{}1 to 2147483647", multiple == 1 ? "" : "a multiple of 4, "));
  };
  check_extent("n", w.n, 1);
  check_extent("k", w.k, 4);
  const std::int64_t quarter = (w.n + 3) / 4;
  check_bytes("weight", w.weight.size(), quarter * w.k);
  check_bytes("data", data.size(), w.n * w.k / 4);
  check_bytes("scales", scales.size(), w.n * 4);
  const ExactFloats exact;
  const float scale = w.divides ? 1 / w.scale : w.scale;
  if (!std::isfinite(w.scale) || !std::isfinite(scale))
    throw Error(ErrorCode::invalid_argument, "weight_scale", fmt::format("{}", w.scale),
                w.divides ? "must be a finite number other than 0" : "must be a finite number");
  for (std::int64_t row = 0; row < w.n; ++row) {
    const std::byte* from = w.weight.data() + row % quarter * w.k;
    const auto shift = static_cast<unsigned>(row / quarter * 2);
    for (std::int64_t col = 0; col < w.k; col += 4) {
      unsigned byte = 0;
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned code = std::to_integer<unsigned>(from[col + i]) >> shift & 3u;
        if (code == 3)
          throw must_be(fmt::format("weight of row {}, column {}", row, col + i), "code 3",
                        "0, 1 or 2, for -1, 0 and 1");
        byte |= code << (2 * i);
      }
      data[static_cast<std::size_t>((row * w.k + col) / 4)] = std::byte(byte);
    }
    checkpoint::store(scales.data(), row, scale);
  }
}

}  // namespace tilewright
