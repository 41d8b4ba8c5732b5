// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding in cast kernels: every kernel gives the bits that one element after the other gives, whatever its
// layout, and for each seed others. tests/templates/cast_stochastic_test.cpp says what those bits have to be like.
#include <vector>

#include "emulator/cast.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e5m2_tensor.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_g32.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/mxfp4.cuh"
#include "formats/mxfp8.cuh"
#include "formats/nvfp4.cuh"
#include "operations/cast/stochastic.cuh"

namespace {

using namespace cast_test;

template <class Y, class X>
Matrix<Y> rounded(const Matrix<X>& x, int encoder, u64 seed) {
  Matrix<Y> y = convert<Y>(x, encoder);
  for (i64 i = 0; i < x.rows * x.cols; ++i) {
    u32 random[4];
    random_words(random, i / 4, seed);
    const i64 b = i / Y::kBlock;
    fmt::round_stochastically<Y>(y.data.data() + b * Y::kDataBytes, y.scales.data() + b * Y::kScaleBytes,
                                 y.context(i / x.cols), static_cast<int>(i % Y::kBlock), x.at(i), random[i % 4],
                                 encoder);
  }
  return y;
}

template <class Plan, class Y, class X>
void check(const Matrix<X>& x, i64 blocks, int encoder, u64 seed) {
  INFO("rows " << x.rows << " cols " << x.cols << " encoder " << encoder << " seed " << seed);
  Matrix<Y> y(x.rows, x.cols);
  const cast::Args args{x.in(), y.out(), x.rows, seed};
  const cast::Shape shape{x.cols, encoder, 0};
  emu::run(
      {{static_cast<u32>(blocks), 1, 1}, Plan::kThreads, 1, static_cast<std::size_t>(Plan::kSharedBytes), seed | 1},
      [&] { Plan::run(args, shape); });
  check_same(y, rounded<Y>(x, encoder, seed));
}

constexpr u64 kSeeds[] = {0, 1, 0xfedcba9876543210};

template <class X, class Y>
void check_blocks() {
  constexpr int vector = 16 / X::kDataBytes, lane = Y::lanes_ok(vector) ? vector : 2 * vector;
  using Encode = cast::Encode<X, Y, 64, lane, 2, true>;
  using Reference = cast::Reference<X, Y, true>;
  const i64 tile = Encode::kTile / Y::kBlock;
  unsigned turn = 0;
  for (const auto& [rows, units] : std::vector<std::pair<i64, i64>>{{1, 1}, {3, 5}, {2, tile + 1}})
    for (int encoder = 0; encoder < Y::kEncoders; ++encoder) {
      const i64 cols = units * Y::kBlock * (Y::kBlock == 1 ? 3 : 1);
      const auto x = plain<X>(rows, cols, ++turn);
      const u64 seed = kSeeds[turn % 3];
      check<Encode, Y>(x, ceil_div64(rows * cols, Encode::kTile), encoder, seed);
      check<Reference, Y>(x, ceil_div64(rows * cols, Reference::kTile), encoder, seed);
    }
}
template <class X, class Y>
void check_rows() {
  unsigned turn = 30;
  for (const i64 cols : {i64{2}, i64{66}, i64{1000}, i64{2050}}) {
    const auto x = plain<X>(3, cols, ++turn);
    if constexpr (Y::kBlock == 1) {
      check<cast::Rows<X, Y, 32, 2, 2, false, false, true>, Y>(x, 2, 0, kSeeds[turn % 3]);
      const auto whole = plain<X>(3, 1008, turn);
      check<cast::Rows<X, Y, 64, 1, 1, true, true, true>, Y>(whole, 3, 0, kSeeds[turn % 3]);
    }
    check<cast::Reference<X, Y, true>, Y>(x, 1, 0, kSeeds[turn % 3]);
  }
}

}  // namespace

TEST_CASE("stochastic casts to blocks", "[cast]") {
  check_blocks<fmt::f32, fmt::nvfp4>();
  check_blocks<fmt::bf16, fmt::mxfp4>();
  check_blocks<fmt::f16, fmt::mxfp8>();
  check_blocks<fmt::f32, fmt::int4_g32>();
  check_blocks<fmt::bf16, fmt::e4m3_g128>();
}
TEST_CASE("stochastic casts to elements", "[cast]") {
  check_blocks<fmt::f32, fmt::e4m3>();
  check_blocks<fmt::f16, fmt::e5m2_tensor>();
}
TEST_CASE("stochastic casts to rows", "[cast]") {
  check_rows<fmt::f32, fmt::e4m3_row>();
  check_rows<fmt::bf16, fmt::int8_row>();
  check_rows<fmt::f16, fmt::int4_row>();
}
TEST_CASE("seeds and places differ", "[cast]") {
  const auto x = plain<fmt::f32>(2, 512, 15);
  const auto first = rounded<fmt::int4_g32>(x, 0, 1), second = rounded<fmt::int4_g32>(x, 0, 2);
  CHECK(first.scales == second.scales);
  CHECK(first.data != second.data);
  CHECK(rounded<fmt::int4_g32>(x, 0, 1).data == first.data);
}
