// SPDX-License-Identifier: Apache-2.0
// Runs cast kernels in the emulator against the scalar codecs, bit for bit. Buffers are allocated to the byte, so that
// a sanitizer sees an access beyond any of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "operations/cast/cuda/decode.cuh"
#include "operations/cast/cuda/encode.cuh"
#include "operations/cast/cuda/reference.cuh"
#include "operations/cast/cuda/rows.cuh"
#include "support/catch.h"

namespace cast_test {

using namespace tw;

constexpr float kGlobal = 0.0173f;

template <class F>
struct Matrix {
  static constexpr i64 kScaleRows = F::kScaleRows;
  i64 rows, cols;
  std::vector<u8> data, scales;
  float global = kGlobal;
  Matrix(i64 r, i64 c) : rows(r), cols(c) {
    data.assign(static_cast<std::size_t>(r * c / F::kBlock * F::kDataBytes), 0xa5);
    scales.assign(static_cast<std::size_t>(F::kRowScale ? fmt::row_bytes<F>() * r
                                                        : ceil_div64(r, kScaleRows) * (c / F::kBlock) * F::kScaleBytes),
                  0xa5);
  }
  Operand in() const { return {data.data(), scales.data(), &global}; }
  MutableOperand out() { return {data.data(), scales.data(), &global}; }
  fmt::row_item<F> context(i64 row) const {
    fmt::row_item<F> item{F::kGlobal ? global : 1.0f};
    if constexpr (F::kRowScale)
      std::memcpy(&item, &scales[static_cast<std::size_t>(row * fmt::row_bytes<F>())], sizeof(item));
    return item;
  }
  float at(i64 i) const {
    const i64 b = i / F::kBlock, scale = i / cols / kScaleRows * (cols / F::kBlock) + i % cols / F::kBlock;
    return F::decode(data.data() + b * F::kDataBytes, scales.data() + scale * F::kScaleBytes, context(i / cols),
                     static_cast<int>(i % F::kBlock));
  }
};

// The same cast by the host's codec, row by row.
template <class Y, class X>
Matrix<Y> convert(const Matrix<X>& x, int encoder) {
  Matrix<Y> y(x.rows, x.cols);
  std::vector<float> v(static_cast<std::size_t>(x.rows * x.cols));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = x.at(static_cast<i64>(i));
  for (i64 r = 0; r < x.rows; ++r) {
    fmt::row_item<Y> context{Y::kGlobal ? y.global : 1.0f};
    if constexpr (Y::kRowScale) {
      float most = 0.0f, below = 0.0f;
      double sum = 0;
      for (i64 c = 0; c < x.cols; ++c) {
        const float f = v[static_cast<std::size_t>(r * x.cols + c)];
        most = max2(most, f), below = max2(below, -f);
        if (!std::isnan(f)) sum += std::fabs(static_cast<double>(f));
      }
      if constexpr (fmt::has_zero_point<Y>())
        context = Y::row_item(most, below);
      else if constexpr (fmt::OfMean<Y>::value)
        context = Y::row_scale_of_mean(static_cast<float>(sum / static_cast<double>(x.cols)));
      else
        context = Y::row_scale(max2(most, below));
    }
    for (i64 c = 0; c < x.cols; c += Y::kBlock) {
      const i64 at = r * x.cols + c, b = at / Y::kBlock;
      Y::encode(&v[static_cast<std::size_t>(at)], y.data.data() + b * Y::kDataBytes,
                y.scales.data() + b * Y::kScaleBytes, context, encoder);
      if constexpr (Y::kRowScale) fmt::add_codes(context, y.data[static_cast<std::size_t>(b)]);
    }
    if constexpr (Y::kRowScale)
      std::memcpy(&y.scales[static_cast<std::size_t>(r * fmt::row_bytes<Y>())], &context, sizeof(context));
  }
  return y;
}

// Plain floats with every kind of trouble, one kind per stretch of 32.
template <class X>
Matrix<X> plain(i64 rows, i64 cols, unsigned seed) {
  Matrix<X> x(rows, cols);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (i64 i = 0; i < rows * cols; ++i) {
    const int kind = static_cast<int>((i / 32 * 7 + seed) % 24);
    float v = normal(random);
    if (kind == 0) v = 0.0f;
    if (kind == 1) v = i % 2 ? -0.0f : 0.0f;
    if (kind == 2) v = -3.25f;
    if (kind == 3) v = i % 32 == 5 ? 127.0f : static_cast<float>(static_cast<int>(random() % 254) - 127) + 0.5f;
    if (kind == 4)
      v = i % 32 == 9 || i % 32 == 21 ? (i % 2 ? 8.0f : -8.0f) : static_cast<float>(random() % 16) - 8.0f + 0.5f;
    if (kind == 5)
      v = (i % 32 == 3 || i % 32 == 19) ? (i % 64 < 32 ? 2.0f : -2.0f) * (i % 32 == 3 ? 1.0f : -1.0f) : 0.1f * v;
    if (kind == 6) v *= 1e-7f;
    if (kind == 7) v *= 1e-30f;
    if (kind == 8) v *= 1e-41f;
    if (kind == 9) v *= 3e4f;
    if (kind == 10) v *= 1e38f;
    if (kind == 11 && i % 32 == 17) v = inf;
    if (kind == 12 && i % 32 == 30) v = -inf;
    if (kind == 13 && i % 32 == 0) v = nan;
    if (kind == 14) v = nan;
    if (kind == 15) v = 1.0f + 0.02f * v;
    if (kind == 16) v = 2688.0f * kGlobal * (i % 5 == 0 ? 1.0f : 0.25f * static_cast<float>(random() % 8) / 3.0f);
    X::encode(&v, x.data.data() + i * X::kDataBytes, nullptr, 1.0f, 0);
  }
  return x;
}
template <class X>
Matrix<X> junk(i64 rows, i64 cols, unsigned seed) {
  Matrix<X> x(rows, cols);
  std::mt19937 random(seed);
  for (u8& b : x.data) b = static_cast<u8>(random());
  for (u8& b : x.scales) b = static_cast<u8>(random());
  for (i64 r = 0; X::kRowScale && r < rows; ++r) {
    fmt::row_item<X> item{0.01f * static_cast<float>(r + 1)};
    if constexpr (fmt::has_zero_point<X>()) item.zero = static_cast<i32>(r * 29 % 256) - 128;
    std::memcpy(&x.scales[static_cast<std::size_t>(r * fmt::row_bytes<X>())], &item, sizeof(item));
  }
  return x;
}

template <class Y>
void check_same(const Matrix<Y>& got, const Matrix<Y>& want) {
  if constexpr (Y::kBlock == 1 && !Y::kRowScale) {  // a NaN is a NaN
    i64 wrong = -1;
    for (i64 i = 0; i < got.rows * got.cols; ++i)
      if (std::memcmp(&got.data[static_cast<std::size_t>(i * Y::kDataBytes)],
                      &want.data[static_cast<std::size_t>(i * Y::kDataBytes)], Y::kDataBytes) != 0 &&
          !(is_nan(got.at(i)) && is_nan(want.at(i))))
        wrong = i;
    CHECK(wrong == -1);
  } else {
    i64 wrong = -1;
    for (std::size_t i = 0; i < got.data.size() && wrong < 0; ++i)
      if (got.data[i] != want.data[i]) wrong = static_cast<i64>(i);
    INFO("block " << wrong / Y::kDataBytes << " byte " << wrong % Y::kDataBytes);
    CHECK(wrong == -1);
    CHECK(got.scales == want.scales);
  }
}

template <class Plan, class Y, class X>
void check_plan(const Matrix<X>& x, i64 blocks, int encoder, std::uint64_t seed) {
  INFO("rows " << x.rows << " cols " << x.cols << " encoder " << encoder);
  Matrix<Y> y(x.rows, x.cols);
  const cast::Args args{x.in(), y.out(), x.rows, 0};
  const cast::Shape shape{x.cols, encoder, 0};
  emu::run({{static_cast<u32>(blocks), 1, 1}, Plan::kThreads, 1, static_cast<std::size_t>(Plan::kSharedBytes), seed},
           [&] { Plan::run(args, shape); });
  check_same(y, convert<Y>(x, encoder));
}

template <class X>
Matrix<X> input(i64 rows, i64 cols, unsigned seed) {
  if constexpr (X::kBlock == 1 && !X::kRowScale)
    return plain<X>(rows, cols, seed);
  else
    return junk<X>(rows, cols, seed);
}

// Shapes around a run's tile: one block, a part of one, the seam of two, with rows that start anywhere.
template <class Plan, class X, class Y>
void check_run() {
  constexpr i64 unit = std::max(X::kBlock, Y::kBlock);
  const i64 tile = Plan::kTile / unit;
  const std::pair<i64, i64> shapes[] = {{1, 1}, {3, 5}, {1, tile}, {tile + 3, 1}, {2, tile + 1}, {5, tile / 2 + 7}};
  unsigned seed = 1;
  for (auto [rows, units] : shapes)
    for (int encoder = 0; encoder < Y::kEncoders; ++encoder, ++seed) {
      const i64 cols = units * unit, blocks = (rows * cols + Plan::kTile - 1) / Plan::kTile;
      check_plan<Plan, Y>(input<X>(rows, cols, seed), blocks + (seed % 2), encoder, seed);
    }
}

template <class X, class Y>
void check_encode() {
  constexpr int vector = 16 / X::kDataBytes;
  if constexpr (Y::lanes_ok(vector)) check_run<cast::Encode<X, Y, 128, vector, 2>, X, Y>();
  if constexpr (Y::lanes_ok(2 * vector)) check_run<cast::Encode<X, Y, 64, 2 * vector, 2>, X, Y>();
  if constexpr (Y::lanes_ok(32) && Y::kBlock > 1) check_run<cast::Encode<X, Y, 64, 32, 1>, X, Y>();
}
template <class X, class Y>
void check_decode() {
  check_run<cast::Decode<X, Y, 128, 4>, X, Y>();
  if constexpr (256 * 16 / Y::kDataBytes / X::kBlock * X::kDataBytes % 16 == 0)
    check_run<cast::Decode<X, Y, 256, 1>, X, Y>();
}

template <class X, class F, int THREADS, int ROWS, int HELD>
void check_rows() {
  const i64 kept = THREADS * 16 * HELD;
  unsigned seed = 40;
  for (i64 cols : {i64{1}, i64{33}, kept - 15, kept - 7, 2 * kept + 5})
    for (i64 rows : {1, 2 * ROWS + 1}) {
      const auto x = plain<X>(rows, cols, ++seed);
      if (cols + 15 <= kept)
        check_plan<cast::Rows<X, F, THREADS, ROWS, HELD, true, false>, F>(x, rows / ROWS + 1, 0, seed);
      check_plan<cast::Rows<X, F, THREADS, ROWS, HELD, false, false>, F>(x, rows / ROWS + 1, 0, seed);
    }
  for (i64 cols : {i64{16}, kept - 16, kept, 2 * kept + 16}) {
    const auto x = plain<X>(ROWS + 1, cols, ++seed);
    if (cols <= kept) check_plan<cast::Rows<X, F, THREADS, ROWS, HELD, true, true>, F>(x, 2, 0, seed);
    check_plan<cast::Rows<X, F, THREADS, ROWS, HELD, false, true>, F>(x, 2, 0, seed);
  }
}

}  // namespace cast_test
