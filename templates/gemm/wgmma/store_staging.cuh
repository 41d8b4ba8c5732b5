// SPDX-License-Identifier: Apache-2.0
// The shared memory through which a warpgroup kernel's results leave and c comes (wgmma_store.cuh): for the kernel, and
// for the host, which has to ask for as much. Elements have y_bytes and c_bytes; c_bytes is 0 without c.
#pragma once
#include "core/types.cuh"

namespace tw::gemm {

constexpr int kOutletColumns = 64;  // of a row that passes through: a strip's

// c comes into y's place where its elements are as large.
TW_FN constexpr int addend_bytes(int y_bytes, int c_bytes) { return c_bytes == y_bytes ? 0 : c_bytes; }

// Tokens that a warpgroup's chunk of a tile of bm holds, and its two chunks' bytes.
TW_FN constexpr int outlet_tokens(int bm, int y_bytes, int c_bytes) {
  return bm % 32 == 0 && y_bytes <= 2 && c_bytes <= 2 ? 32 : bm % 16 == 0 ? 16 : 8;
}
TW_FN constexpr int outlet_bytes(int bm, int y_bytes, int c_bytes) {
  return 2 * outlet_tokens(bm, y_bytes, c_bytes) * kOutletColumns * (y_bytes + addend_bytes(y_bytes, c_bytes));
}

// The same of a warp's sixteen rows where the sides have changed places: four-byte elements leave as they are.
TW_FN constexpr int turned_outlet_bytes(int y_bytes, int c_bytes) {
  const int y = y_bytes == 4 ? 0 : y_bytes, own = addend_bytes(y_bytes, c_bytes);
  return 16 * kOutletColumns * (c_bytes == 0 ? y : 2 * (own ? y + own : c_bytes));
}

// A shelf: whole tiles of y that wait in shared memory while warps which multiply nothing store them. It is made of
// pieces of sixteen rows of y and 64 columns, and has room for tiles of `columns` by `rows` of the matrix instructions.
TW_FN constexpr int shelf_bytes(int columns, int rows, bool turned, int y_bytes) {
  return (turned ? (columns + 63) / 64 * 64 : columns) * rows * y_bytes;
}

}  // namespace tw::gemm
