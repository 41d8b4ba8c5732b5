// SPDX-License-Identifier: Apache-2.0
// Where blocks of gemv and reference work: along x alone, all of w for the first rows of x, then for the next.
#include "backends/cuda/numeric.cuh"
#include "operations/gemm/cuda/grid.cuh"
#include "support/catch.h"

using namespace tw;

namespace {
template <int block_m, int block_n>
void check_order(i64 m, i64 n) {
  u32 block = 0;
  i64 wrong = 0;
  for (i64 row = 0; row < m; row += block_m)
    for (i64 column = 0; column < n; column += block_n, ++block) {
      const gemm::GridPlace place = gemm::grid_place<block_m, block_n>(block, m, n);
      wrong += place.m != row || place.n != column;
    }
  INFO("m " << m << " n " << n << " blocks of " << block_m << " x " << block_n);
  CHECK(wrong == 0);
}
}  // namespace

TEST_CASE("a block's number says which rows of x and of w it takes, those of w first") {
  for (const i64 m : {1, 7, 8, 9, 16, 17, 1000})
    for (const i64 n : {1, 127, 128, 129, 1000}) {
      check_order<8, 128>(m, n);
      check_order<1, 1>(m, n);
      check_order<4, 16>(m, n);
    }
  check_order<8, 64>(600000, 64);  // more blocks of rows than a grid has along y
  check_order<4, 128>(300000, 130);
}

TEST_CASE("the last block of the largest grid is in its place") {
  const gemm::GridPlace few = gemm::grid_place<8, 16>(0x7ffffffe, 8, 0x7fffffff0);
  CHECK(few.m == 0);
  CHECK(few.n == 0x7fffffffll * 16 - 16);
  const gemm::GridPlace many = gemm::grid_place<1, 16>(0x7ffffffe, 0x7fffffff, 16);
  CHECK(many.m == 0x7ffffffe);
  CHECK(many.n == 0);
}
