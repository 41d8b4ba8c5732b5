// SPDX-License-Identifier: Apache-2.0
// Sizes of the shared memory through which a warpgroup kernel's results leave and c arrives (store/rows.cuh). The
// kernel and the host read the same functions. y_bytes and c_bytes are bytes of an element; c_bytes is 0 without c.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gemm {

TW_CONSTANTS(int, kStagingColumns = 64);  // of a row in staging memory: a strip's

// c is staged in y's place if its elements are as large.
TW_FN constexpr int addend_bytes(int y_bytes, int c_bytes) { return c_bytes == y_bytes ? 0 : c_bytes; }

// Tokens of the chunks in which a warpgroup stores a tile of `columns` tokens, and the bytes of its two chunk buffers.
TW_FN constexpr int staging_tokens(int columns, int y_bytes, int c_bytes) {
  return columns % 32 == 0 && y_bytes <= 2 && c_bytes <= 2 ? 32 : columns % 16 == 0 ? 16 : 8;
}
TW_FN constexpr int staging_bytes(int columns, int y_bytes, int c_bytes) {
  return 2 * staging_tokens(columns, y_bytes, c_bytes) * kStagingColumns * (y_bytes + addend_bytes(y_bytes, c_bytes));
}

// The same for a warp's sixteen rows where the operands are swapped: four-byte elements of y are not staged.
TW_FN constexpr int swapped_staging_bytes(int y_bytes, int c_bytes) {
  const int y = y_bytes == 4 ? 0 : y_bytes, own = addend_bytes(y_bytes, c_bytes);
  return 16 * kStagingColumns * (c_bytes == 0 ? y : 2 * (own ? y + own : c_bytes));
}

// The buffer of asynchronous stores: whole tiles of y, in pieces of sixteen or eight rows of y by 64 columns. A tile is
// `columns` by `rows` of the matrix instructions.
TW_FN constexpr int async_store_bytes(int columns, int rows, bool swapped, int y_bytes) {
  return (swapped ? (columns + 63) / 64 * 64 : columns) * rows * y_bytes;
}

}  // namespace tw::gemm
