// SPDX-License-Identifier: Apache-2.0
// Symmetric and triangular matrices as square tiles, their products, and loops over threads. What one index of a loop
// computes depends on that index alone, and sums have a fixed order: results have equal bits for any number of threads
// and on any machine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tilewright::quantize {

constexpr std::int64_t kTile = 64;  // rows and columns: a tile of doubles fills a first-level cache
constexpr std::int64_t kTileSize = kTile * kTile;
constexpr std::int64_t tiles_in(std::int64_t k) { return (k + kTile - 1) / kTile; }

// The upper triangle of a k x k matrix. Tile (i, j), i <= j, is rows 64i and columns 64j; those of one j are adjacent.
// Elements within a tile are in column-major order unless a function says otherwise.
class Tiles {
 public:
  explicit Tiles(std::int64_t k)
      : count_(tiles_in(k)), values_(static_cast<std::size_t>(count_ * (count_ + 1) / 2 * kTileSize)) {}
  std::int64_t count() const { return count_; }  // per side
  double* tile(std::int64_t i, std::int64_t j) { return values_.data() + (j * (j + 1) / 2 + i) * kTileSize; }
  const double* tile(std::int64_t i, std::int64_t j) const { return const_cast<Tiles*>(this)->tile(i, j); }
  // An element of the symmetric matrix, tiles column-major.
  double at(std::int64_t i, std::int64_t j) const {
    if (i > j) std::swap(i, j);
    return tile(i / kTile, j / kTile)[j % kTile * kTile + i % kTile];
  }

 private:
  std::int64_t count_;
  std::vector<double> values_;
};

// c[i][j] += sum over t < depth of a[t][i] b[t][j]; rows of a, b and c have 64 elements. depth % 64 == 0; 64 products
// at a time are summed in T, in order, each fused with its addition (std::fma).
void add_product(const float* a, const float* b, std::int64_t depth, double* c);
void add_product(const double* a, const double* b, std::int64_t depth, double* c);
void subtract_product(const double* a, const double* b, std::int64_t depth, double* c);

// sums[j][r] += row[j] d[r] for j < count and r < 64, fused.
void add_outer(const double* row, const double* d, std::int64_t count, double* sums);

// `threads` as a caller gave it: 0 is all cores. Throws Error (invalid_argument) outside 0 to 256.
int thread_count(int threads);

}  // namespace tilewright::quantize
