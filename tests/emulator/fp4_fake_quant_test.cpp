// SPDX-License-Identifier: Apache-2.0
// Fake quantization kernels against the model of support/fake_quant.h, bit for bit. Buffers are allocated to the byte,
// so that a sanitizer sees an access beyond any of them.
#include "support/fake_quant.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "operations/fp4_fake_quant/cuda/blocks.cuh"
#include "operations/fp4_fake_quant/cuda/reference.cuh"
#include "support/catch.h"

namespace {

using namespace tw;
using fake_quant_model::kAmaxes;
using fake_quant_model::troubled;

template <int threads, int passes, int block, int piece, bool ragged>
inline constexpr fp4_fake_quant::Knobs kKnobs{threads, passes, block, piece, ragged};

template <class F>
std::vector<u8> encoded(const std::vector<float>& values) {
  std::vector<u8> bytes(values.size() * F::kDataBytes);
  for (std::size_t i = 0; i < values.size(); ++i) F::encode(&values[i], &bytes[i * F::kDataBytes], nullptr, 1.0f, 0);
  return bytes;
}
template <class F>
std::vector<float> decoded(const std::vector<u8>& bytes) {
  std::vector<float> values(bytes.size() / F::kDataBytes);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = F::decode(&bytes[i * F::kDataBytes], nullptr, 1.0f, 0);
  return values;
}

// Memory that begins on 16 bytes, as operator new's does, and ends where its bytes end.
std::vector<u8> launched(const auto& kernel, std::int64_t blocks, int threads, const std::vector<u8>& x,
                         std::size_t y_bytes, float amax, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                         bool in_place) {
  std::vector<u8> from = x, to(in_place ? 0 : y_bytes, 0xa5);
  const fp4_fake_quant::Args args{from.data(), in_place ? from.data() : to.data(), &amax, rows};
  const fp4_fake_quant::Shape shape{cols};
  emu::run({{static_cast<u32>(blocks), 1, 1}, static_cast<unsigned>(threads), 1, 0, seed},
           [&] { kernel(args, shape); });
  if (!in_place) CHECK(from == x);
  return in_place ? from : to;
}

// Blocks of elements per thread block.
template <class Plan>
constexpr int tile_of() {
  if constexpr (requires { Plan::kTile; })
    return Plan::kTile;
  else
    return Plan::kThreads;
}

template <class Plan, class X, class Y>
void check(int block, std::int64_t rows, std::int64_t cols, float amax, unsigned seed) {
  INFO("rows " << rows << " cols " << cols << " block " << block << " amax " << amax);
  const std::vector<u8> x = encoded<X>(troubled(rows * cols, block, amax, seed));
  const std::vector<u8> want = encoded<Y>(fake_quant_model::fake_quantized(decoded<X>(x), cols, block, amax));
  const std::int64_t all = rows * ((cols + block - 1) / block), tiles = (all + tile_of<Plan>() - 1) / tile_of<Plan>();
  const auto kernel = [](const fp4_fake_quant::Args& args, const fp4_fake_quant::Shape& shape) {
    Plan::run(args, shape);
  };
  const auto same = [&](const std::vector<u8>& got) {
    std::size_t wrong = 0;
    while (wrong < want.size() && got[wrong] == want[wrong]) ++wrong;
    const std::size_t i = wrong / Y::kDataBytes;
    INFO("element " << i << " is " << (i < want.size() / Y::kDataBytes ? decoded<Y>(got)[i] : 0.0f) << " of "
                    << (i < want.size() / Y::kDataBytes ? decoded<X>(x)[i] : 0.0f));
    CHECK(wrong == want.size());
  };
  same(launched(kernel, tiles + seed % 2, Plan::kThreads, x, want.size(), amax, rows, cols, seed, false));
  if (same_type<X, Y>::value)
    same(launched(kernel, tiles, Plan::kThreads, x, want.size(), amax, rows, cols, seed + 1, true));
}

// Shapes about a tile's end, each with another largest magnitude.
template <class Plan, class X, class Y>
void check_flat(int block) {
  const std::int64_t tile = tile_of<Plan>();
  unsigned seed = 1;
  for (const auto& [rows, blocks] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {3, 5}, {1, tile}, {2, tile + 1}, {5, tile / 2 + 3}})
    for (const int more : {0, 5}) {
      check<Plan, X, Y>(block, rows, blocks * block, kAmaxes[static_cast<std::size_t>(seed % 5) + more % 6], seed);
      ++seed;
    }
}
template <class Plan, class X, class Y>
void check_ragged(int block, std::int64_t piece) {
  unsigned seed = 20;
  for (const std::int64_t cols :
       {piece, block - piece, block + piece, 5 * block - piece, tile_of<Plan>() * block + piece})
    for (const std::int64_t rows : {1, 7}) {
      ++seed;
      if (cols > 0 && cols % block != 0) check<Plan, X, Y>(block, rows, cols, kAmaxes[seed % 10], seed);
    }
}

template <class X, class Y, int block>
void check_block() {
  constexpr int whole = 16 / X::kDataBytes;
  check_flat<fp4_fake_quant::Blocks<X, Y, kKnobs<64, 2, block, whole, false>>, X, Y>(block);
  if constexpr (whole < block)
    check_ragged<fp4_fake_quant::Blocks<X, Y, kKnobs<64, 1, block, whole, true>>, X, Y>(block, whole);
  check_ragged<fp4_fake_quant::Blocks<X, Y, kKnobs<64, 2, block, 1, true>>, X, Y>(block, 1);
  using Reference = fp4_fake_quant::Reference<X, Y, block>;
  check<Reference, X, Y>(block, 3, 7 * block, 3.0f, 5);
  check<Reference, X, Y>(block, 3, 7 * block + 3, 2688.0f, 6);
}
template <class X, class Y>
void check_blocks() {
  check_block<X, Y, 8>();
  check_block<X, Y, 16>();
  check_block<X, Y, 32>();
  check_block<X, Y, 64>();
  check_block<X, Y, 128>();
  check_block<X, Y, 256>();
}

}  // namespace

TEMPLATE_TEST_CASE("fake quantization in blocks of every size", "[fake_quant]", fmt::f32, fmt::f16, fmt::bf16) {
  check_blocks<TestType, TestType>();
}

TEMPLATE_TEST_CASE("fake quantization to another type", "[fake_quant]", fmt::f32, fmt::f16, fmt::bf16) {
  check_block<TestType, fmt::f32, 16>();
  check_block<TestType, fmt::f16, 256>();
  check_block<TestType, fmt::bf16, 8>();
}

TEST_CASE("fake quantization with more threads and passes", "[fake_quant]") {
  check_flat<fp4_fake_quant::Blocks<fmt::f32, fmt::f32, kKnobs<256, 8, 16, 4, false>>, fmt::f32, fmt::f32>(16);
  check_flat<fp4_fake_quant::Blocks<fmt::bf16, fmt::bf16, kKnobs<128, 4, 128, 8, false>>, fmt::bf16, fmt::bf16>(128);
  check_flat<fp4_fake_quant::Blocks<fmt::f32, fmt::f16, kKnobs<128, 4, 256, 4, false>>, fmt::f32, fmt::f16>(256);
  check_ragged<fp4_fake_quant::Blocks<fmt::f32, fmt::f32, kKnobs<256, 4, 256, 1, true>>, fmt::f32, fmt::f32>(256, 1);
}

TEST_CASE("every largest magnitude that memory may hold", "[fake_quant]") {
  unsigned seed = 50;
  for (const float amax : kAmaxes) {
    ++seed;
    check<fp4_fake_quant::Blocks<fmt::f32, fmt::f32, kKnobs<64, 2, 16, 4, false>>, fmt::f32, fmt::f32>(16, 5, 16 * 44,
                                                                                                       amax, seed);
    check<fp4_fake_quant::Reference<fmt::f32, fmt::f32, 16>, fmt::f32, fmt::f32>(16, 5, 16 * 44, amax, seed);
  }
}

TEST_CASE("fake quantization of random shapes", "[fake_quant]") {
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    const std::int64_t rows = 1 + random() % 9, cols = 1 + random() % 700;
    const float amax =
        std::ldexp(1.0f + static_cast<float>(random() % 1000) / 1000.0f, static_cast<int>(random() % 24) - 10);
    check<fp4_fake_quant::Blocks<fmt::bf16, fmt::bf16, kKnobs<64, 2, 64, 1, true>>, fmt::bf16, fmt::bf16>(
        64, rows, cols, amax, random());
    check<fp4_fake_quant::Blocks<fmt::f32, fmt::f32, kKnobs<64, 2, 32, 4, true>>, fmt::f32, fmt::f32>(
        32, rows, cols * 4, amax, random());
    check<fp4_fake_quant::Blocks<fmt::f16, fmt::f16, kKnobs<64, 2, 16, 8, false>>, fmt::f16, fmt::f16>(
        16, rows, cols * 16, amax, random());
  }
}
