// SPDX-License-Identifier: Apache-2.0
// Weights of any bytes that a packing has to bring back. Those of TQ1_0 are what five digits to the base 3 may be: of
// 256 bytes 243, and of a block's last four, which have four digits, 81.
#pragma once

#include <tilewright/format.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tilewright::test {

inline void keep_stored(Format f, std::span<std::uint8_t> data) {
  if (f.name() != "tq1_0") return;
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::size_t in_block = i % 54;
    if (in_block >= 52) continue;  // the half
    unsigned number = data[i] * 243u >> 8;
    if (in_block >= 48) number -= number % 3;
    data[i] = static_cast<std::uint8_t>((number * 256 + 242) / 243);
  }
}

}  // namespace tilewright::test
