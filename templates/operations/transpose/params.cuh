// SPDX-License-Identifier: Apache-2.0
// Parameters of transpose kernels: what a call passes (tilewright::TransposeArgs, byte for byte) and what prepare()
// fixed; and what follows from a kernel's knobs, for host and device.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::transpose {

struct Args {
  const void* x;
  void* y;
};

struct Shape {
  i64 rows, cols;
};

// A block's tile is 32 words either way: so many elements.
TW_FN constexpr int tile_side(int element_bytes) { return 128 / element_bytes; }
// With a word more for each of its columns, so that neither direction meets in a bank.
TW_FN constexpr int tile_bytes(int element_bytes) { return 4 * tile_side(element_bytes) * 33; }

}  // namespace tw::transpose
