// SPDX-License-Identifier: Apache-2.0
// Grouped gemms: which rows a group has, and a group's gemm as an ordinary one, whose pointers begin at the group's
// first row.
//
// The host does not see the rows, so every value is made to fit: offsets are clamped to 0 ... m, and one below the one
// before it counts as that one; counts are clamped to 0 ... m. So no two groups have a row in common, and none has one
// beyond the matrix.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/params.cuh"

namespace tw::gemm {

struct Group {
  i64 index, row, rows;  // its first row of x and y, and how many it has
};

TW_DEVICE i32 clamped_row(i32 value, i64 m) { return static_cast<i32>(max2(i64{0}, min2(i64{value}, m))); }

// A group. m: as a launch passes it. row: the largest offset of the groups before it, 0 for the first; then its own.
TW_DEVICE Group next_group(const i32* group_rows, const Shape& shape, i64 m, i64 index, i32& row) {
  if (shape.masked) return {index, index * m, clamped_row(group_rows[index], m)};
  row = max2(row, clamped_row(group_rows[index], m));
  return {index, row, max2(row, clamped_row(group_rows[index + 1], m)) - row};
}

// In integers, since some streams are null.
template <class T>
TW_DEVICE void skip(T*& pointer, i64 bytes) {
  pointer = reinterpret_cast<T*>(reinterpret_cast<u64>(pointer) + static_cast<u64>(bytes));
}

// A group's place in the operands and in y. n: rows of one w. `args` may have its operands swapped, hence x and w apart
// from it; its extents are the caller's to set.
template <class X, class Epi>
TW_DEVICE void go_to_group(Args& args, Operand& x, Operand& w, const Shape& shape, i64 n, const Group& group) {
  const i64 ldx = args.ldx ? args.ldx : shape.k, ldy = args.ldy ? args.ldy : n;
  skip(x.data, group.row * data_stride<X>(ldx));
  skip(x.scales, group.row * scale_stride<X>(ldx));
  skip(w.data, group.index * shape.w_data_step);
  skip(w.scales, group.index * shape.w_scales_step);
  skip(w.global, group.index * 4);
  skip(args.y, group.row * ldy * static_cast<i64>(sizeof(typename Epi::Out)));
  if constexpr (Epi::kBias) skip(args.bias, group.index * n * static_cast<i64>(sizeof(typename Epi::Addend)));
}

}  // namespace tw::gemm
