// SPDX-License-Identifier: Apache-2.0
// In which order persistent blocks of the warpgroup kernel take tiles.
#include <set>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "operations/gemm/cuda/wgmma/tile_scheduler.cuh"
#include "support/catch.h"

using namespace tw;

namespace {
using Tile = std::pair<i64, i64>;  // the first row of w and the first token

// The tiles of an m x n problem, by number: those of the first wave if there are as many blocks.
std::vector<Tile> order(i64 m, i64 n) {
  using Tiles = gemm::ClusterTiles<128, 64, 64, 1, 1, 1, gemm::Schedule::whole_tiles>;
  const u32 count = static_cast<u32>(ceil_div64(m, 128) * ceil_div64(n, 64));
  std::vector<Tile> tiles(count, Tile{-1, -1});
  emu::run({{count, 1, 1}, 1, 1, 0, 1}, [&] {
    gemm::Args args{};
    args.m = m;
    gemm::Shape shape{};
    shape.n = n, shape.k = 64;
    Tiles own(args, shape);
    i64 n0, m0;
    if (own.next(n0, m0)) tiles[block_x()] = {n0, m0};
  });
  return tiles;
}
}  // namespace

TEST_CASE("wgmma: every tile is one block's") {
  for (const auto& [m, n] : {std::pair<i64, i64>{1, 64}, {300, 1000}, {3072, 3200}, {3073, 640}, {4096, 100}}) {
    const std::vector<Tile> tiles = order(m, n);
    INFO("m " << m << " n " << n);
    CHECK(std::set<Tile>(tiles.begin(), tiles.end()).size() == tiles.size());
    for (const auto& [n0, m0] : tiles) CHECK((n0 >= 0 && n0 < n && n0 % 64 == 0 && m0 >= 0 && m0 < m && m0 % 128 == 0));
  }
}

TEST_CASE("wgmma: blocks side by side read the same rows of the longer side") {
  for (const i64 m : {129, 300, 1100, 3072}) {
    const std::vector<Tile> tiles = order(m, 8192);
    const auto of_tokens = static_cast<std::size_t>(ceil_div64(m, 128));
    INFO("m " << m);
    for (std::size_t i = 0; i < tiles.size(); ++i)
      CHECK(tiles[i] == Tile(static_cast<i64>(i / of_tokens) * 64, static_cast<i64>(i % of_tokens) * 128));
  }
  // Fewer rows of w than tokens, and many tokens: bands of sixteen tiles along w, those with the same tokens first.
  const std::vector<Tile> narrow = order(1024, 128), many = order(4096, 8192);
  for (std::size_t i = 0; i < narrow.size(); ++i)
    CHECK(narrow[i] == Tile(static_cast<i64>(i % 2) * 64, static_cast<i64>(i / 2) * 128));
  for (std::size_t i = 0; i < 16; ++i) CHECK(many[i] == Tile(static_cast<i64>(i) * 64, 0));
  CHECK(many[16] == Tile(0, 128));
}
