// SPDX-License-Identifier: Apache-2.0
// amax kernels against comparisons of doubles. Buffers are allocated to the byte, so that a sanitizer sees an access
// beyond any of them.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "operations/amax/cuda/reference.cuh"
#include "operations/amax/cuda/vectors.cuh"
#include "support/catch.h"

namespace {

using namespace tw;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

template <class X>
std::vector<u8> encoded(const std::vector<float>& values) {
  std::vector<u8> bytes(values.size() * X::kDataBytes);
  for (std::size_t i = 0; i < values.size(); ++i) X::encode(&values[i], &bytes[i * X::kDataBytes], nullptr, 1.0f, 0);
  return bytes;
}

template <class X>
u32 wanted(const std::vector<u8>& x) {
  double most = 0;
  for (std::size_t i = 0; i < x.size(); i += X::kDataBytes) {
    const float v = X::decode(&x[i], nullptr, 1.0f, 0);
    if (std::isnan(v)) return 0x7fc00000;
    most = std::max(most, std::fabs(static_cast<double>(v)));
  }
  return std::bit_cast<u32>(static_cast<float>(most));
}

template <class Plan, class X>
void check(const std::vector<float>& values, std::int64_t rows, u32 blocks, std::uint64_t seed) {
  INFO(values.size() << " values, " << rows << " rows, " << blocks << " blocks");
  const std::vector<u8> x = encoded<X>(values);
  u32 workspace[2] = {};
  // A second launch finds the workspace as the first one left it.
  for (int launch = 0; launch < 2; ++launch) {
    float amax = -1;
    const amax::Args args{x.data(), &amax, workspace, rows};
    const amax::Shape shape{static_cast<i64>(values.size()) / rows};
    emu::run({{blocks, 1, 1}, static_cast<unsigned>(Plan::kThreads), 1, 0, seed + launch},
             [&] { Plan::run(args, shape); });
    CHECK(std::bit_cast<u32>(amax) == wanted<X>(x));
    CHECK((workspace[0] == 0 && workspace[1] == 0));
  }
}

inline constexpr amax::Knobs kFew{.threads = 64, .loads = 2}, kMany{.threads = 128, .loads = 4};

template <class X>
void check_format() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  using Few = amax::Vectors<X, kFew>;
  using Many = amax::Vectors<X, kMany>;
  using Reference = amax::Reference<X>;
  constexpr int tile = Few::kTile * Few::kElements;
  std::uint64_t seed = 1;
  for (const int count : {1, 2, 3, 7, 8, 9, 255, tile - 1, tile, tile + 1, 3 * tile + 5, 7 * tile - 3}) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = normal(random);
    // The largest one anywhere, the last element too, of either sign.
    for (const std::size_t at : {std::size_t{0}, values.size() / 2, values.size() - 1}) {
      std::vector<float> peaked = values;
      peaked[at] = at % 2 ? 1000.0f : -1000.0f;
      for (const u32 blocks : {1u, 2u, 5u}) check<Few, X>(peaked, 1, blocks, seed += 2);
      check<Many, X>(peaked, 1, 3, seed += 2);
      check<Reference, X>(peaked, 1, 1, seed += 2);
      for (const float special : {kInf, -kInf, kNan, std::bit_cast<float>(0xffffffffu), 1e-41f}) {
        peaked[at] = special;
        check<Few, X>(peaked, 1, 2, seed += 2);
        check<Reference, X>(peaked, 1, 1, seed += 2);
      }
    }
  }
  std::vector<float> zeros(999, -0.0f);
  check<Few, X>(zeros, 9, 3, 5), check<Reference, X>(zeros, 9, 1, 5);
  // An infinity does not hide a NaN, in whatever blocks they are.
  std::vector<float> both(static_cast<std::size_t>(4 * tile), 1.0f);
  both.front() = kNan, both.back() = kInf;
  check<Few, X>(both, 4, 4, 6), check<Few, X>(both, 4, 1, 8);
}

}  // namespace

TEST_CASE("amax: the largest magnitude of single precision", "[amax]") { check_format<fmt::f32>(); }
TEST_CASE("amax: the largest magnitude of half precision", "[amax]") { check_format<fmt::f16>(); }
TEST_CASE("amax: the largest magnitude of bfloat16", "[amax]") { check_format<fmt::bf16>(); }
