// SPDX-License-Identifier: Apache-2.0
// The kernels of loss scaling against products of doubles. Tensors begin and end anywhere, and what lies between them
// must stay as it is; buffers are allocated to the byte, so that a sanitizer sees an access beyond any of them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "emulator/emulator.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "operations/loss_scale/cuda/reference.cuh"
#include "operations/loss_scale/cuda/vectors.cuh"
#include "support/catch.h"

namespace {

using namespace tw;
using loss_scale::Piece;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

template <class X>
float value(const std::vector<u8>& bytes, i64 element) {
  return X::decode(&bytes[static_cast<std::size_t>(element) * X::kDataBytes], nullptr, 1.0f, 0);
}
template <class X>
void put(std::vector<u8>& bytes, i64 element, float v) {
  X::encode(&v, &bytes[static_cast<std::size_t>(element) * X::kDataBytes], nullptr, 1.0f, 0);
}

// Stretches of elements [first, first + count) of one buffer.
struct Stretch {
  i64 first, count;
};
enum class Place { apart, in_place, addresses };  // addresses: in place, without a base

template <class Plan, class X>
void check(std::vector<u8> x, const std::vector<Stretch>& stretches, float scale, u32 blocks, Place place,
           std::uint64_t seed, float before = 0) {
  INFO(stretches.size() << " pieces, " << blocks << " blocks, scale " << scale << ", seed " << seed);
  const i64 elements = static_cast<i64>(x.size()) / X::kDataBytes;
  std::vector<u8> expected(x.size(), 0xa5);
  if (place != Place::apart) expected = x;
  bool found = !(scale > 0 && scale < kInf) || before != 0;
  const double factor = static_cast<float>(1.0 / static_cast<double>(scale));
  for (const auto& [first, count] : stretches)
    for (i64 i = first; i < first + count; ++i) {
      REQUIRE(i < elements);
      found |= !std::isfinite(value<X>(x, i));
      const float product = static_cast<float>(value<X>(x, i) * factor);
      put<X>(expected, i, std::isnan(product) ? std::bit_cast<float>(0x7fffffff) : product);
    }
  std::vector<u8> y(x.size(), 0xa5);
  const u64 from = reinterpret_cast<u64>(x.data()), to = reinterpret_cast<u64>(y.data());
  std::vector<Piece> table;
  for (const auto& [first, count] : stretches)
    table.push_back({first * X::kDataBytes + static_cast<i64>(place == Place::addresses ? from : 0), count});
  u32 workspace[2] = {};
  float found_inf = -1;
  loss_scale::Args args{from, to, table.data(), &scale, &found_inf, nullptr, workspace, static_cast<i64>(table.size())};
  if (place == Place::in_place) args.y = from;
  if (place == Place::addresses) args.x = args.y = 0;
  if (before != 0) found_inf = before, args.found_before = &found_inf;
  emu::run({{blocks, 1, 1}, static_cast<unsigned>(Plan::kThreads), 1, 0, seed}, [&] { Plan::run(args, {0}); });
  CHECK((place == Place::apart ? y : x) == expected);
  CHECK(found_inf == (found ? 1.0f : 0.0f));
  CHECK((workspace[0] == 0 && workspace[1] == 0));
}

inline constexpr loss_scale::Knobs kFew{.threads = 32, .loads = 2}, kMany{.threads = 128, .loads = 4};

template <class X>
void check_format() {
  using Few = loss_scale::Vectors<X, kFew>;
  using Many = loss_scale::Vectors<X, kMany>;
  using Reference = loss_scale::Reference<X>;
  constexpr int tile = Few::kTile * Few::kElements;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uint64_t seed = 1;
  const auto values = [&](i64 count) {
    std::vector<u8> x(static_cast<std::size_t>(count * X::kDataBytes));
    for (i64 i = 0; i < count; ++i) put<X>(x, i, normal(random) * std::exp2(static_cast<float>(i % 31) - 15));
    return x;
  };
  const auto everywhere = [&](const std::vector<u8>& x, const std::vector<Stretch>& stretches, float scale) {
    for (const Place place : {Place::apart, Place::in_place, Place::addresses}) {
      for (const u32 blocks : {1u, 3u, 8u}) check<Few, X>(x, stretches, scale, blocks, place, seed += 2);
      check<Many, X>(x, stretches, scale, 2, place, seed += 2);
      check<Reference, X>(x, stretches, scale, 1, place, seed += 2);
    }
  };
  // One piece of every size around a tile and an access, from every place within an access.
  for (const i64 count : {1, 2, 3, 7, 8, 9, 15, 17, 255, tile - 1, tile, tile + 1, 3 * tile + 5})
    for (i64 first = 0; first < 9; first += count < 20 ? 1 : 3) {
      const std::vector<u8> x = values(first + count + 3);
      check<Few, X>(x, {{first, count}}, 1536, 1, Place::apart, seed += 2);
      check<Many, X>(x, {{first, count}}, 1536, 1, Place::in_place, seed += 2);
      check<Reference, X>(x, {{first, count}}, 1536, 1, Place::apart, seed += 2);
    }
  // Pieces of many sizes, none of them empty or all, in any order.
  std::vector<Stretch> many;
  i64 end = 0;
  for (int i = 0; i < 40; ++i) {
    const i64 count = i % 7 == 3 ? 0 : static_cast<i64>(random() % (i % 5 ? 30 : 3 * tile));
    many.push_back({end + i % 3, count});
    end += i % 3 + count;
  }
  std::shuffle(many.begin(), many.end(), random);
  const std::vector<u8> x = values(end + 2);
  for (const float scale : {65536.0f, 1536.0f, 1.0f, 0.3f, 1e-30f, 1e30f}) everywhere(x, many, scale);
  // An infinity or a NaN in any piece, and none that is between pieces.
  for (const float special : {kInf, -kInf, kNan, std::bit_cast<float>(0xffffffffu)})
    for (const std::size_t at : {std::size_t{0}, many.size() / 2, many.size() - 1}) {
      std::vector<u8> bad = x;
      if (many[at].count == 0) continue;
      put<X>(bad, many[at].first + many[at].count - 1, special);
      everywhere(bad, many, 1024);
    }
  std::vector<u8> beside = values(40);
  put<X>(beside, 3, kInf), put<X>(beside, 20, kNan);
  everywhere(beside, {{4, 16}, {21, 19}}, 2);
  // The largest finite number is none, nor is one that a product makes infinite.
  std::vector<u8> largest = values(5);
  put<X>(largest, 2, 65504.0f);
  everywhere(largest, {{0, 5}}, 1e-37f);
  // Scales that no loss has been scaled by; and what another launch found.
  for (const float scale : {0.0f, -2.0f, kInf, kNan}) everywhere(x, many, scale);
  for (const float before : {1.0f, 0.5f, kNan})
    check<Few, X>(x, many, 2, 3, Place::apart, seed += 2, before),
        check<Reference, X>(x, many, 2, 1, Place::apart, 0, before);
}

}  // namespace

TEST_CASE("unscale: single precision", "[loss_scale]") { check_format<fmt::f32>(); }
TEST_CASE("unscale: half precision", "[loss_scale]") { check_format<fmt::f16>(); }
TEST_CASE("unscale: bfloat16", "[loss_scale]") { check_format<fmt::bf16>(); }

TEST_CASE("update_scale: grows after enough good steps, in place and apart", "[loss_scale]") {
  using update_scale::Reference;
  const auto step = [](float& scale, i32& good, float found, const update_scale::Shape& how) {
    emu::run({{1, 1, 1}, 32, 1, 0, 1}, [&] { Reference::run({&scale, &good, &found, &scale, &good}, how); });
  };
  float scale = 1024;
  i32 good = 0;
  const update_scale::Shape how{2, 0.5, 3};
  for (const auto& [found, want_scale, want_good] : std::vector<std::tuple<float, float, int>>{
           {0, 1024, 1}, {0, 1024, 2}, {0, 2048, 0}, {0, 2048, 1}, {1, 1024, 0}, {1, 512, 0}, {kNan, 256, 0}}) {
    step(scale, good, found, how);
    CHECK(scale == want_scale);
    CHECK(good == want_good);
  }
  scale = 3e38f, good = 2;  // does not grow beyond single precision, and starts to count again
  step(scale, good, 0, how);
  CHECK((scale == 3e38f && good == 0));
  scale = 3, good = 0;  // factors are doubles
  step(scale, good, 0, {1.1, 0.5, 1});
  CHECK(scale == static_cast<float>(3 * 1.1));
  step(scale, good, 1, {1.1, 0.7, 1});
  CHECK(scale == static_cast<float>(static_cast<double>(static_cast<float>(3 * 1.1)) * 0.7));
}
