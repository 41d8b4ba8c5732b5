// SPDX-License-Identifier: Apache-2.0
// The kernels of fake_quant against integers and doubles. Buffers are allocated to the byte, so that a sanitizer sees
// an access beyond any of them.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "operations/fake_quant/cuda/reference.cuh"
#include "operations/fake_quant/cuda/vectors.cuh"
#include "support/catch.h"

namespace {

using namespace tw;
using fake_quant::Grad;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

template <class X>
float at(const std::vector<u8>& bytes, std::size_t i) {
  return X::decode(&bytes[i * X::kDataBytes], nullptr, 1.0f, 0);
}
template <class X>
std::vector<u8> encoded(const std::vector<float>& values) {
  std::vector<u8> bytes(values.size() * X::kDataBytes);
  for (std::size_t i = 0; i < values.size(); ++i) X::encode(&values[i], &bytes[i * X::kDataBytes], nullptr, 1.0f, 0);
  return bytes;
}

struct Case {
  i64 rows, cols;
  i32 qmin, qmax;
  bool by_row, zero_points;
};

// x of every kind: within the codes, at their edges, beyond, halves, tiny, infinite and NaN.
std::vector<float> values(const Case& c, float scale, std::mt19937& random, bool special) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(c.rows * c.cols));
  for (float& v : x) v = normal(random) * scale * static_cast<float>(c.qmax - c.qmin) * 0.4f;
  for (std::size_t i = 0; i < x.size(); i += 3)
    x[i] = scale * (static_cast<float>(static_cast<int>(random() % 600) - 300) / 2);
  for (std::size_t i = 1; special && i < x.size(); i += 11) {
    constexpr float kSpecial[] = {0, -0.0f, 1e-41f, kInf, -kInf, kNan, 3e38f, -3e38f};
    x[i] = kSpecial[random() % 8];
  }
  return x;
}

template <class Plan, class X, Grad grad>
void check(const Case& c, u32 blocks, std::uint64_t seed) {
  INFO(c.rows << " x " << c.cols << ", " << c.qmin << " to " << c.qmax << (c.by_row ? " by row, " : ", ") << blocks
              << " blocks, seed " << seed);
  std::mt19937 random(static_cast<unsigned>(seed));
  const std::size_t scales = static_cast<std::size_t>(c.by_row ? c.rows : 1);
  std::vector<float> scale(scales);
  std::vector<i32> zero(scales);
  for (std::size_t s = 0; s < scales; ++s) {
    scale[s] = std::exp2(static_cast<float>(random() % 8) - 6) * (1 + static_cast<float>(random() % 100) / 128);
    zero[s] = c.zero_points ? c.qmin + static_cast<i32>(random() % static_cast<unsigned>(c.qmax - c.qmin + 1)) : 0;
  }
  const std::vector<u8> x = encoded<X>(values(c, scale[0], random, true));
  const std::vector<u8> dy = encoded<X>(values(c, 0.01f, random, grad == Grad::straight));
  const std::size_t count = static_cast<std::size_t>(c.rows * c.cols);

  std::vector<u8> expected(x.size());
  std::vector<double> sums(scales), sizes(scales);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t s = c.by_row ? i / static_cast<std::size_t>(c.cols) : 0;
    const double inverse = static_cast<float>(1.0 / static_cast<double>(scale[s]));
    const double v = static_cast<float>(at<X>(x, i) * inverse), code = std::nearbyint(v) + zero[s];
    const bool inside = code >= c.qmin && code <= c.qmax;
    const double limited = !(code >= c.qmin) ? c.qmin : std::min<double>(code, c.qmax);
    float y = static_cast<float>((limited - zero[s]) * static_cast<double>(scale[s]));
    if (grad != Grad::none) {
      y = at<X>(dy, i) * (inside ? 1.0f : 0.0f);
      if (std::isnan(y)) y = std::bit_cast<float>(0x7fffffff);
      const double slope = inside ? std::nearbyint(v) - v : limited - zero[s];
      sums[s] += at<X>(dy, i) * slope, sizes[s] += std::fabs(at<X>(dy, i) * slope);
    }
    X::encode(&y, &expected[i * X::kDataBytes], nullptr, 1.0f, 0);
  }

  constexpr float kFactor = 0.37f;
  std::vector<u32> workspace(2 + 2 * fake_quant::most_blocks());
  std::vector<float> first;
  for (const int launch : {0, 1, 2}) {  // apart, in place of x, in place of dy
    std::vector<u8> from = x, gradient = dy, to(x.size(), 0xa5);
    std::vector<float> dscale(scales, -1);
    fake_quant::Args args{from.data(),
                          grad == Grad::none ? nullptr : gradient.data(),
                          to.data(),
                          scale.data(),
                          c.zero_points ? zero.data() : nullptr,
                          grad == Grad::learned ? dscale.data() : nullptr,
                          workspace.data(),
                          c.rows,
                          kFactor};
    if (launch == 1) args.y = from.data();
    if (launch == 2 && grad != Grad::none) args.y = gradient.data();
    const std::vector<u8>& result = launch == 1 ? from : launch == 2 && grad != Grad::none ? gradient : to;
    emu::run({{blocks, 1, 1},
              static_cast<unsigned>(Plan::kThreads),
              1,
              static_cast<std::size_t>(Plan::kSharedBytes),
              seed + static_cast<std::uint64_t>(launch)},
             [&] {
               Plan::run(args, {c.cols, c.qmin, c.qmax});
             });
    CHECK(result == expected);
    CHECK((workspace[0] == 0 && workspace[1] == 0));
    if (grad != Grad::learned) continue;
    for (std::size_t s = 0; s < scales; ++s)
      CHECK(std::fabs(dscale[s] - sums[s] * kFactor) <= 10 * 0x1p-24 * sizes[s] * kFactor + 1e-44);
    if (launch == 0) first = dscale;
    CHECK(dscale == first);  // the same bits whatever the order in which blocks run
  }
}

constexpr fake_quant::Knobs knobs(int piece, bool by_row, bool learned) {
  fake_quant::Knobs k;
  k.threads = 64, k.loads = 2, k.piece = piece, k.by_row = by_row, k.learned = learned;
  return k;
}
template <int piece, bool by_row, bool learned>
inline constexpr fake_quant::Knobs kOf = knobs(piece, by_row, learned);

template <class X, Grad grad>
void check_grad() {
  constexpr bool kLearned = grad == Grad::learned;
  constexpr int kWhole = 16 / X::kDataBytes;
  std::uint64_t seed = 1;
  for (const auto& [qmin, qmax] : {std::pair{-128, 127}, {-8, 7}, {0, 255}, {-7, 7}, {-2, 1}, {0, 3}})
    for (const bool zero_points : {false, true}) {
      for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 5}, {7, 64}, {5, 333}, {2, 2048}}) {
        const Case c{rows, cols, qmin, qmax, false, zero_points};
        for (const u32 blocks : {1u, 3u})
          check<fake_quant::Vectors<X, kOf<kWhole, false, kLearned>, grad>, X, grad>(c, blocks, seed += 4);
        const u32 each = kLearned ? 1 : static_cast<u32>((rows * cols + 127) / 128);
        check<fake_quant::Reference<X, false, grad>, X, grad>(c, each, seed += 4);
      }
      for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 5}, {9, 33}, {33, 3}}) {
        const Case c{rows, cols, qmin, qmax, true, zero_points};
        check<fake_quant::Vectors<X, kOf<1, true, kLearned>, grad>, X, grad>(c, 2, seed += 4);
        const u32 each = kLearned ? static_cast<u32>(rows) : static_cast<u32>((rows * cols + 127) / 128);
        check<fake_quant::Reference<X, true, grad>, X, grad>(c, each, seed += 4);
      }
      for (const auto& [rows, cols] : {std::pair{1, kWhole}, {7, 4 * kWhole}, {3, 150 * kWhole}})
        check<fake_quant::Vectors<X, kOf<kWhole, true, kLearned>, grad>, X, grad>(
            {rows, cols, qmin, qmax, true, zero_points}, 2, seed += 4);
    }
}
template <class X>
void check_format() {
  check_grad<X, Grad::none>();
  check_grad<X, Grad::straight>();
  check_grad<X, Grad::learned>();
}

}  // namespace

TEST_CASE("fake_quant: single precision", "[fake_quant]") { check_format<fmt::f32>(); }
TEST_CASE("fake_quant: half precision", "[fake_quant]") { check_format<fmt::f16>(); }
TEST_CASE("fake_quant: bfloat16", "[fake_quant]") { check_format<fmt::bf16>(); }
