// SPDX-License-Identifier: Apache-2.0
// transpose kernels against a loop over elements. Buffers are allocated to the byte, so that a sanitizer sees an access
// beyond any of them.
#include <cstring>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "operations/transpose/cuda/tiles.cuh"
#include "support/catch.h"

namespace {

using namespace tw;

template <class Plan, int bytes>
void check(i64 rows, i64 cols, u32 blocks, std::uint64_t seed) {
  INFO(rows << " x " << cols << " of " << bytes << " bytes, " << blocks << " blocks");
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<u8> x(static_cast<std::size_t>(rows * cols * bytes)), y(x.size(), 0xee), expected(x.size());
  for (u8& byte : x) byte = static_cast<u8>(random());
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < cols; ++c)
      std::memcpy(&expected[static_cast<std::size_t>((c * rows + r) * bytes)],
                  &x[static_cast<std::size_t>((r * cols + c) * bytes)], bytes);
  const transpose::Args args{x.data(), y.data()};
  const transpose::Shape shape{rows, cols};
  emu::run({{blocks, 1, 1}, static_cast<unsigned>(Plan::kThreads), 1, Plan::kSharedBytes, seed},
           [&] { Plan::run(args, shape); });
  CHECK(y == expected);
}

template <int bytes, int warps, bool words>
void check_tiles(i64 rows, i64 cols, std::uint64_t seed) {
  using Plan = transpose::Tiles<bytes, warps, words>;
  const i64 tiles = ceil_div64(rows, Plan::kSide) * ceil_div64(cols, Plan::kSide);
  check<Plan, bytes>(rows, cols, static_cast<u32>(tiles), seed);
}

template <int bytes>
void check_bytes() {
  constexpr i64 kSide = 128 / bytes, kWord = 4 / bytes;
  std::uint64_t seed = 1;
  for (const auto& [rows, cols] : {std::pair<i64, i64>{kSide, kSide},
                                   {kWord, kWord},
                                   {kWord, 3 * kSide + kWord},
                                   {2 * kSide - kWord, kSide + kWord},
                                   {5 * kWord, 2 * kSide}}) {
    check_tiles<bytes, 8, true>(rows, cols, ++seed);
    check_tiles<bytes, 4, true>(rows, cols, ++seed);
    check_tiles<bytes, 16, true>(rows, cols, ++seed);
    check_tiles<bytes, 8, false>(rows, cols, ++seed);
  }
  // Rows and columns that are no whole words.
  for (const auto& [rows, cols] :
       {std::pair<i64, i64>{1, 1}, {1, 2 * kSide + 1}, {kSide + 3, 1}, {kSide + 1, kSide - 1}})
    check_tiles<bytes, 8, false>(rows, cols, ++seed), check_tiles<bytes, 16, false>(rows, cols, ++seed);
  for (const auto& [rows, cols] : {std::pair<i64, i64>{1, 1}, {7, 65}})
    check<transpose::Reference<bytes>, bytes>(rows, cols, static_cast<u32>(rows * cols / 128 + 2), ++seed);
}

}  // namespace

TEST_CASE("transpose: tiles and the reference move every element", "[transpose]") {
  check_bytes<1>();
  check_bytes<2>();
  check_bytes<4>();
}
