// SPDX-License-Identifier: Apache-2.0
// The operation transpose: y[c, r] = x[r, c], bit for bit
//
//   transpose x=int8 rows=14336 cols=4096
//
// For weights that other libraries store as [k, n], because a gemm takes them as [n, k]. Launch it once, at load, or
// before each gemm if weights change. 4-bit codes [k / 2, n], with two codes along k in each byte, are a matrix of int8
// with k / 2 rows; their scales [k / group, n] are a matrix of f16 or e4m3. A value; any thread may use it.
#pragma once

#include <cstdint>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

// Both extents are fixed: a launch processes the whole matrix.
struct Transpose {
  static constexpr std::string_view kOperation = "transpose";

  Format x;  // and y: f32 f16 bf16 int32 int8 e4m3 e5m2
  std::int64_t rows = 0, cols = 0;
  friend bool operator==(const Transpose&, const Transpose&) = default;
};

// What a launch passes. Standard layout, as templates/operations/transpose/params.cuh. Device pointers, 16-byte
// aligned.
struct TransposeArgs {
  static constexpr std::string_view kOperation = "transpose";

  const void* x = nullptr;  // [rows, cols], dense
  void* y = nullptr;        // [cols, rows], dense, apart from x
};

}  // namespace tilewright
