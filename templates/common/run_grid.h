// SPDX-License-Identifier: Apache-2.0
// The grid of a kernel whose blocks take tiles of a run of rows x cols items, whatever the rows are.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tilewright/source.h>

namespace tilewright {

// At least as many blocks as the run has tiles; those too many end at once. A block stands for r rows and tile / r
// columns, with the r that wastes least.
inline GridAxis run_grid(std::int64_t tile, std::int64_t rows, std::int64_t cols) {
  GridAxis best;
  std::uint64_t fewest = 0;
  const auto consider = [&](std::int64_t r, std::int64_t c) {
    const GridAxis axis{1, static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(c)};
    const std::uint64_t blocks = axis.blocks(std::max<std::int64_t>(rows, 1), cols);
    if (fewest == 0 || blocks < fewest) best = axis, fewest = blocks;
  };
  if (cols <= tile) consider(tile / cols, cols);
  for (std::int64_t r = 1; r <= 16 && tile % r == 0 && (r == 1 || r * 4 <= rows); r *= 2) consider(r, tile / r);
  return best;
}

}  // namespace tilewright
