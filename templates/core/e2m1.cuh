// SPDX-License-Identifier: Apache-2.0
// E2M1 codes as integers.
#pragma once
#include "core/ptx.cuh"

namespace tw::fmt {

// Twice the E2M1 value is an integer: 0 1 2 3 4 6 8 12. A permute looks four of them up at once.
TW_DEVICE u32 e2m1_twice(u32 nibbles) {
  const u32 index = nibbles & 0x7777u;
  const u32 positive = prmt(0x03020100u, 0x0c080604u, index);
  const u32 negative = prmt(0xfdfeff00u, 0xf4f8fafcu, index);
  const u32 mask = prmt(0x0000ff00u, 0u, (nibbles >> 3) & 0x1111u);
  return (positive & ~mask) | (negative & mask);
}
// The eight nibbles of a word so, as signed bytes in order.
TW_DEVICE void e2m1_bytes(u32 word, u32& first, u32& second) {
  first = e2m1_twice(word & 0xffffu), second = e2m1_twice(word >> 16);
}

}  // namespace tw::fmt
