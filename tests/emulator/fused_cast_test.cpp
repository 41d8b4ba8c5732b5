// SPDX-License-Identifier: Apache-2.0
// fused_cast kernels in the emulator against sums in double precision. Each element has to be, of all values that its
// stored scale lets it have, the nearest to a number within the bound; and the scale that of such numbers. Buffers are
// allocated to the byte, so that a sanitizer sees an access beyond any of them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "emulator/cast.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e4m3_tensor.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_asym_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/mxfp8.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q8_1.cuh"
#include "operations/fused_cast/cuda/reference.cuh"
#include "operations/fused_cast/cuda/rows.cuh"

namespace {

using namespace tw;
using cast_test::Matrix;
using gemm::Act;
namespace fc = tw::fused_cast;

constexpr float kEps = 1e-5f;

template <class X>
Matrix<X> filled(i64 rows, i64 cols, unsigned seed, float about = 0) {
  Matrix<X> m(rows, cols);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (i64 i = 0; i < rows * cols; ++i) {
    const float scale = 0.25f + static_cast<float>(i / 16 * 7 % 5), v = about + scale * normal(random);
    X::encode(&v, m.data.data() + i * X::kDataBytes, nullptr, 1.0f, 0);
  }
  return m;
}

double act_of(Act act, double v) {
  if (act == Act::relu) return v > 0 || v != v ? v : 0;
  if (act == Act::gelu) return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
  if (act == Act::gelu_tanh)
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (v + 0.044715 * v * v * v)));
  if (act == Act::silu) return v / (1 + std::exp(-v));
  return v;
}

struct Expected {
  std::vector<double> value, error;
};

// One launch's matrices; Bias and Weight may be void.
template <class X, class Bias, class Weight>
struct Inputs {
  template <class F>
  using VectorFormat = tw::select<same_type<F, void>::value, fmt::f32, F>;
  Matrix<X> x, residual;
  Matrix<VectorFormat<Bias>> bias;
  Matrix<VectorFormat<Weight>> weight;
  Inputs(i64 rows, i64 cols, bool gated, unsigned seed)
      : x(filled<X>(rows, gated ? 2 * cols : cols, seed)),
        residual(filled<X>(rows, cols, seed + 1)),
        bias(filled<VectorFormat<Bias>>(1, cols, seed + 2)),
        weight(filled<VectorFormat<Weight>>(1, cols, seed + 3, 1.0f)) {}
};

template <class X, class Bias, class Weight>
Expected expected(const fc::Knobs& k, const Inputs<X, Bias, Weight>& in, Matrix<X>& residual_out) {
  const i64 rows = residual_out.rows, cols = residual_out.cols;
  Expected e{std::vector<double>(static_cast<std::size_t>(rows * cols)), {}};
  e.error = e.value;
  for (i64 r = 0; r < rows; ++r) {
    double squares = 0;
    for (i64 c = 0; c < cols; ++c) {
      double& h = e.value[static_cast<std::size_t>(r * cols + c)];
      if (k.gated) {
        h = act_of(k.act, in.x.at(2 * r * cols + c)) * in.x.at((2 * r + 1) * cols + c);
        continue;
      }
      float v = in.x.at(r * cols + c);
      if (!same<Bias, void>()) v += in.bias.at(c);
      if (k.residual) {
        v += in.residual.at(r * cols + c);
        X::encode(&v, residual_out.data.data() + (r * cols + c) * X::kDataBytes, nullptr, 1.0f, 0);
        v = residual_out.at(r * cols + c);
      }
      h = v;
      squares += h * h;
    }
    const double inverse = k.norm ? 1 / std::sqrt(squares / static_cast<double>(cols) + kEps) : 1;
    for (i64 c = 0; c < cols; ++c) {
      const auto i = static_cast<std::size_t>(r * cols + c);
      double& h = e.value[i];
      h *= inverse;
      if (!same<Weight, void>()) h *= in.weight.at(c);
      if (!k.gated) h = act_of(k.act, h);
      e.error[i] = (static_cast<double>(cols) / 64 + 64) * 0x1p-24 * (std::fabs(h) + 1e-30);
      if (k.act != Act::none) e.error[i] += 0x1p-20 * (std::fabs(h) + 4);
    }
  }
  return e;
}

// The values that element i of a block may have under the scale that is stored.
template <class F>
std::vector<float> values_of(const u8* block, const u8* scales, const fmt::row_item<F>& context, int i) {
  std::vector<u8> copy(block, block + F::kDataBytes);
  std::vector<float> values;
  for (unsigned code = 0; code < (F::kBits == 4 ? 16u : 256u); ++code) {
    if constexpr (F::kBits == 4)
      copy[static_cast<std::size_t>(i / 2)] = static_cast<u8>(code << (4 * (i % 2)));
    else
      copy[static_cast<std::size_t>(same<F, fmt::q8_1>() ? 4 + i : i)] = static_cast<u8>(code);
    const float v = F::decode(copy.data(), scales, context, i);
    if (!std::isnan(v)) values.push_back(v);
  }
  return values;
}

template <class Y>
void check_elements(const Matrix<Y>& y, const Expected& e) {
  i64 wrong = 0;
  for (i64 i = 0; i < y.rows * y.cols; ++i) {
    const double v = e.value[static_cast<std::size_t>(i)], error = e.error[static_cast<std::size_t>(i)];
    const double got = y.at(i);
    double nearest = 0;
    if constexpr (Y::kBits <= 8) {
      nearest = std::numeric_limits<double>::infinity();
      const i64 b = i / Y::kBlock;
      for (const float each : values_of<Y>(y.data.data() + b * Y::kDataBytes, y.scales.data() + b * Y::kScaleBytes,
                                           y.context(i / y.cols), static_cast<int>(i % Y::kBlock)))
        nearest = std::min(nearest, std::fabs(each - v));
    } else {
      const float rounded = static_cast<float>(v);
      u8 bytes[4];
      Y::encode(&rounded, bytes, nullptr, 1.0f, 0);
      nearest = std::fabs(Y::decode(bytes, nullptr, 1.0f, 0) - v);
    }
    // A row's scale is off by as much as what it was made from: so are its values. q8_1's codes count steps of a scale
    // that is only then rounded to half precision.
    const double scale_error = same<Y, fmt::q8_1>() ? 0x1p-10 : 0x1p-20;
    if (std::fabs(got - v) <= nearest + 2 * error + scale_error * std::fabs(v)) continue;
    INFO("element " << i << " = " << got << ", of " << v << " the nearest is " << nearest << " off");
    if (wrong++ < 3) CHECK(got == v);
  }
  CHECK(wrong == 0);
}

// Scales are those of values within the bound: of them as they are, or all moved from zero, or all to it.
template <class Y>
void check_scales(const Matrix<Y>& y, const Expected& e) {
  if constexpr (Y::kRowScale || Y::kBlock > 1) {
    std::vector<Matrix<Y>> likely;
    for (const double direction : {0.0, 1.0, -1.0}) {
      Matrix<fmt::f32> moved(y.rows, y.cols);
      for (i64 i = 0; i < y.rows * y.cols; ++i) {
        const double v = e.value[static_cast<std::size_t>(i)];
        const auto f = static_cast<float>(v + direction * std::copysign(e.error[static_cast<std::size_t>(i)], v));
        std::memcpy(moved.data.data() + 4 * i, &f, 4);
      }
      likely.push_back(cast_test::convert<Y>(moved, 0));
    }
    i64 wrong = 0;
    if constexpr (Y::kRowScale) {
      for (i64 r = 0; r < y.rows; ++r) {
        const auto scale = [&](int i) { return fmt::scale_of(likely[static_cast<std::size_t>(i)].context(r)); };
        const float got = fmt::scale_of(y.context(r));
        if (got < std::min(scale(0), scale(2)) || got > std::max(scale(0), scale(1))) ++wrong;
      }
    } else {
      for (i64 b = 0; b < y.rows * y.cols / Y::kBlock; ++b) {
        const auto same_scale = [&](const Matrix<Y>& other) {
          if constexpr (Y::kScaleBytes == 0)
            return std::memcmp(&y.data[static_cast<std::size_t>(b * Y::kDataBytes)],
                               &other.data[static_cast<std::size_t>(b * Y::kDataBytes)], 2) == 0;
          else
            return std::memcmp(&y.scales[static_cast<std::size_t>(b * Y::kScaleBytes)],
                               &other.scales[static_cast<std::size_t>(b * Y::kScaleBytes)], Y::kScaleBytes) == 0;
        };
        if (std::none_of(likely.begin(), likely.end(), same_scale)) ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

template <class Kernel, class X, class Y, class Bias, class Weight>
void check(const fc::Knobs& k, i64 rows, i64 cols, i64 blocks, unsigned seed) {
  INFO("rows " << rows << " cols " << cols << " row_threads " << k.row_threads << " held " << k.held);
  const Inputs<X, Bias, Weight> in(rows, cols, k.gated, seed);
  for (const bool in_place : {false, true}) {
    if (in_place && !k.residual) break;
    Matrix<Y> y(rows, cols);
    Matrix<X> residual = in.residual, out(rows, cols), wanted(rows, cols);
    const Expected e = expected(k, in, wanted);
    Matrix<X>& to = in_place ? residual : out;
    const fc::Args args{in.x.data.data(), y.out(), in.bias.data.data(), in.weight.data.data(), residual.data.data(),
                        to.data.data(),   rows};
    const fc::Shape shape{cols, 0, kEps};
    emu::run({{static_cast<u32>(blocks), 1, 1},
              static_cast<unsigned>(Kernel::kThreads),
              1,
              static_cast<std::size_t>(Kernel::kSharedBytes),
              seed},
             [&] { Kernel::run(args, shape); });
    if (k.residual) CHECK(to.data == wanted.data);
    check_elements(y, e);
    check_scales(y, e);
    if constexpr (fmt::has_zero_point<Y>())
      for (i64 r = 0; r < rows; ++r) {
        i32 sum = 0;
        for (i64 c = 0; c < cols; ++c) sum += static_cast<i8>(y.data[static_cast<std::size_t>(r * cols + c)]);
        CHECK(y.context(r).sum == sum);
      }
  }
}

constexpr fc::Knobs knobs(int row_threads, int block_rows, int held, int piece, bool whole, bool residual, bool norm,
                          bool gated, Act act) {
  return {row_threads, block_rows, held, false, piece == 16, piece, whole, residual, norm, gated, act};
}
constexpr fc::Knobs looping(fc::Knobs k) {
  k.ahead = true;
  return k;
}

// One function, and columns about what a row's threads hold.
template <class X, class Y, class Bias, class Weight, bool residual, bool norm, bool gated, Act act, int row_threads,
          int block_rows, int held, int piece = 8>
void check_rows(unsigned seed) {
  constexpr bool kWholeRow = norm || Y::kRowScale;
  static constexpr fc::Knobs kFits = knobs(row_threads, block_rows, held, piece, true, residual, norm, gated, act),
                             kLong = knobs(row_threads, block_rows, held, piece, false, residual, norm, gated, act);
  static constexpr fc::Knobs kAhead = looping(kFits);
  using Fits = fc::Rows<X, Y, Bias, Weight, kFits>;
  using Ahead = fc::Rows<X, Y, Bias, Weight, kAhead>;
  using Long = fc::Rows<X, Y, Bias, Weight, kLong>;
  using Reference = fc::Reference<X, Y, Bias, Weight, kFits>;
  const i64 unit = std::max<i64>(Y::kBlock, piece), span = kFits.span();
  const auto blocks = [&](i64 rows, i64 cols) {
    return ceil_div64(rows, block_rows) * (kWholeRow ? 1 : ceil_div64(cols, span));
  };
  const auto run = [&](i64 rows, i64 cols) {
    ++seed;
    if (!kWholeRow || cols <= span)
      check<Fits, X, Y, Bias, Weight>(kFits, rows, cols, blocks(rows, cols) + seed % 2, seed);
    if (kWholeRow && cols <= span)
      for (const i64 resident : {1, 2, 9}) check<Ahead, X, Y, Bias, Weight>(kAhead, rows, cols, resident, seed);
    if (kWholeRow) check<Long, X, Y, Bias, Weight>(kLong, rows, cols, blocks(rows, cols), seed);
  };
  run(1, unit), run(block_rows + 1, 3 * unit), run(2, span), run(3, span / unit * unit - unit);
  run(5 * block_rows + 1, span);
  run(2, span + unit), run(block_rows + 1, 2 * span + 3 * unit);
  check<Reference, X, Y, Bias, Weight>(kFits, 3, 5 * unit, 1, seed);
}

using F32 = fmt::f32;
using F16 = fmt::f16;
using BF16 = fmt::bf16;

}  // namespace

TEST_CASE("fused_cast: residual, RMSNorm and a scale for each row", "[fused_cast]") {
  check_rows<BF16, fmt::e4m3_row, void, BF16, true, true, false, Act::none, 32, 4, 2>(1);
  check_rows<F16, fmt::int8_row, void, F32, true, true, false, Act::none, 64, 2, 1>(2);
  check_rows<F32, fmt::int8_asym_row, F16, F16, true, true, false, Act::none, 64, 1, 1>(3);
  check_rows<BF16, fmt::int4_row, void, void, false, true, false, Act::none, 64, 1, 2>(4);
}
TEST_CASE("fused_cast: RMSNorm and blocks", "[fused_cast]") {
  check_rows<BF16, fmt::nvfp4, void, BF16, true, true, false, Act::none, 32, 2, 2>(5);
  check_rows<F16, fmt::mxfp8, void, F16, true, true, false, Act::none, 64, 2, 1>(6);
  check_rows<F32, fmt::q8_1, BF16, F32, false, true, false, Act::silu, 64, 1, 1>(7);
}
TEST_CASE("fused_cast: blocks in pieces of 16 elements", "[fused_cast]") {
  check_rows<BF16, fmt::nvfp4, void, BF16, false, true, false, Act::none, 32, 2, 1, 16>(22);
  check_rows<F16, fmt::mxfp8, void, F16, true, true, false, Act::none, 64, 1, 1, 16>(23);
  check_rows<F32, fmt::q8_1, BF16, F32, false, true, false, Act::silu, 32, 1, 2, 16>(24);
  check_rows<F16, fmt::nvfp4, void, void, false, false, true, Act::silu, 64, 2, 1, 16>(25);
}
TEST_CASE("fused_cast: gates", "[fused_cast]") {
  check_rows<BF16, fmt::e4m3_row, void, void, false, false, true, Act::silu, 64, 2, 1>(8);
  check_rows<F16, fmt::nvfp4, void, void, false, false, true, Act::gelu, 32, 4, 2>(9);
  check_rows<BF16, fmt::mxfp8, void, void, false, false, true, Act::gelu_tanh, 64, 1, 1>(10);
  check_rows<F32, fmt::q8_1, void, void, false, false, true, Act::silu, 32, 1, 2>(11);
  check_rows<BF16, BF16, void, void, false, false, true, Act::none, 64, 1, 1>(12);
}
TEST_CASE("fused_cast: bias, activation and elements", "[fused_cast]") {
  check_rows<BF16, BF16, F32, void, false, false, false, Act::relu, 32, 2, 2>(13);
  check_rows<F16, F32, F16, void, true, false, false, Act::gelu, 64, 1, 1>(14);
  check_rows<F32, F16, BF16, BF16, true, true, false, Act::none, 64, 1, 2>(15);
  check_rows<F32, fmt::e4m3, F32, void, false, false, false, Act::silu, 32, 1, 1>(16);
  check_rows<BF16, fmt::e4m3_tensor, BF16, void, false, false, false, Act::gelu, 32, 1, 1>(17);
}
TEST_CASE("fused_cast: any number of columns", "[fused_cast]") {
  check_rows<BF16, fmt::e4m3_row, void, BF16, true, true, false, Act::none, 32, 2, 4, 1>(18);
  check_rows<F16, fmt::int8_asym_row, F16, void, false, false, false, Act::relu, 64, 1, 2, 1>(19);
  check_rows<F32, F16, F16, F32, true, true, false, Act::silu, 32, 1, 2, 1>(20);
  check_rows<BF16, fmt::e4m3_row, void, void, false, false, true, Act::silu, 32, 2, 2, 1>(21);
}
