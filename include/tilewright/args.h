// SPDX-License-Identifier: Apache-2.0
// What a launch passes to a kernel of each operation. Standard layout and identical on the device
// (templates/gemm/params.cuh, templates/cast/params.cuh, templates/pack/params.cuh), so that launching copies nothing
// twice. All pointers are device pointers, 16-byte aligned.
#pragma once

#include <cstdint>

#include <tilewright/format.h>

namespace tilewright {

struct GemmArgs {
  Operand x;                   // [m, k], activations; as Gemm::x_from if the problem has one, which ldx then counts
  Operand w;                   // [n, k], weights
  void* y = nullptr;           // [m, n]
  const void* bias = nullptr;  // [n], if the problem has one
  std::int64_t m = 0;          // tokens of this call; 0 launches nothing
  std::int64_t ldx = 0;  // elements from one row of x to the next; 0: k. Multiple of the format's block, >= k; rows
                         // of elements that are whole pieces of 16 bytes start on 16 bytes
  std::int64_t ldy = 0;  // elements from one row of y to the next; 0: n. >= n
  const void* c =
      nullptr;           // [m, n], if the problem has one: apart from y, or, where formats and strides agree, y itself
  std::int64_t ldc = 0;  // elements from one row of c to the next; 0: n. >= n
  void* workspace = nullptr;  // Gemm::workspace bytes that no other launch uses meanwhile. Zero when first used; every
                              // launch leaves it fit for the next, of any problem
};

struct CastArgs {
  Operand x;              // [rows, cols]
  MutableOperand y;       // [rows, cols]; y.global is read, not written
  std::int64_t rows = 0;  // of this call; 0 launches nothing
};

struct PackArgs {
  MutableOperand w;      // [n, k], as its format stores it; read, or written by an inverse pack
  MutableOperand tiles;  // the same matrix, packed (tilewright/pack.h). A null `global` is left alone
};

}  // namespace tilewright
