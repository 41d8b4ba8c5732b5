// SPDX-License-Identifier: Apache-2.0
// Rows of a matrix in a format's streams.
#pragma once

#include <tilewright/format.h>

#include <cstddef>
#include <cstdint>

namespace tilewright::cpu {

// The matrix from row `row` on: of a format some of whose scales are for several rows, that row alone. ld: elements
// from one row to the next, whole blocks.
inline MutableOperand from_row(Format f, MutableOperand m, std::int64_t row, std::int64_t ld) {
  for (const StreamSpec& s : f.info().streams) {
    const std::int64_t at = s.scope == Scope::tensor ? 0
                            : s.scope == Scope::row  ? row * s.bytes
                                                     : row / s.rows * (ld / f.block()) * s.bytes;
    m.set(s.stream, static_cast<std::byte*>(m.at(s.stream)) + at);
  }
  return m;
}
inline Operand from_row(Format f, Operand m, std::int64_t row, std::int64_t ld) {
  return from_row(
      f, MutableOperand{const_cast<void*>(m.data), const_cast<void*>(m.scales), const_cast<float*>(m.global)}, row, ld);
}

}  // namespace tilewright::cpu
