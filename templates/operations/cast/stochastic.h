// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding on the host (operations/cast/stochastic.cuh).
#pragma once

#include <tilewright/format.h>

#include <cstdint>

namespace tilewright::cast {

bool rounds_stochastically(Format f);

// y: what the encoder made of x, [rows, cols]: of a matrix the rows from `first` on. Codes are changed in place.
// Precondition: rounds_stochastically(f).
void round_stochastically(Format f, const float* x, std::int64_t first, std::int64_t rows, std::int64_t cols,
                          MutableOperand y, int encoder, std::uint64_t seed);

}  // namespace tilewright::cast
