// SPDX-License-Identifier: Apache-2.0
// What a Hessian holds, and what is computed of it.
#pragma once

#include <tilewright/post_training.h>

#include <optional>

#include "quantize/rounding/tiles.h"

namespace tilewright {

struct Hessian::Sums {
  explicit Sums(std::int64_t columns) : k(columns), tiles(columns), magnitudes(static_cast<std::size_t>(columns)) {}
  std::int64_t k, rows = 0;
  quantize::Tiles tiles;  // columns beyond k are 0
  std::vector<double> magnitudes;
};

namespace quantize {

// tr(d H d^T) of the 64 rows of d, given transposed: d[column][row], `columns` a multiple of 64. One number a row,
// added to `to`. `scratch` has 64 x 64 elements.
void add_errors(const Tiles& hessian, const double* d, double* scratch, double* to);

// The upper triangular R of H = R R^T, after the columns of H were put in the given order, `dead` ones were given the
// diagonal `mean` and `damping` x mean was added to the diagonal. Tiles are row-major; columns beyond k are those of
// the identity. Empty if H is not positive definite as far as double precision can tell.
std::optional<Tiles> factor(const Hessian::Sums& hessian, std::span<const std::int32_t> order, double mean,
                            double damping, int threads);

}  // namespace quantize
}  // namespace tilewright
