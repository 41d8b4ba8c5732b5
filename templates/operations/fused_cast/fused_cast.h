// SPDX-License-Identifier: Apache-2.0
// The operation fused_cast, its kernel families, and how its results are judged.
#pragma once

#include <tilewright/fused_cast.h>
#include <tilewright/operation.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tilewright::fused_cast {

const Operation& operation();
const Family& rows();
const Family& reference();  // any pair of formats

// A launch's matrices in host memory. Streams and vectors that the problem does not have are null.
struct HostArgs {
  Operand x, y, bias, weight, residual, residual_out;
  std::int64_t rows = 0;
};
// The exact value of each element of h before it is encoded, and how far a correct kernel's may be from it
// (docs/reference/numerics.md); and the new residual's bytes.
struct Exact {
  std::vector<double> values, bounds;  // [rows, cols]
  std::vector<std::byte> residual;
};
Exact exact(const FusedCast& c, const HostArgs& args);

// What y and residual_out hold against that. What is wrong first; empty if nothing is.
HostCheck judge(const FusedCast& c, const HostArgs& args);

}  // namespace tilewright::fused_cast
