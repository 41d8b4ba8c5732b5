// SPDX-License-Identifier: Apache-2.0
// Whether a result is right, given the exact value and the largest error that a correct kernel may make.
#pragma once

#include <tilewright/format.h>
#include <tilewright/gemm.h>
#include <tilewright/numerics.h>
#include <tilewright/operation.h>
#include <tilewright/task.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tilewright::gemm {

struct Judged {
  bool right = false;
  double of_bound = 0;  // the error relative to the bound, where both are numbers
};

// `got`: decoded from y's format. Infinities are right where the value is the same one, or where the bound lets the
// value round to one in y; NaN only where it is NaN.
Judged judge(Format y, float got, double value, double bound);

// `count` of an extent's indices, evenly, with the first and the last: where a check that may not look at all looks.
std::vector<std::int64_t> spread(std::int64_t extent, std::int64_t count);

// How far from w a correct kernel's weights may be, where w is packed and unpacking rounds, or is codes of a table
// whose entries become elements of x; else empty. m: the task's w, and its values.
std::vector<float> slack_of_weights(const Gemm& g, const Matrix& m, const std::vector<float>& values,
                                    std::span<const std::span<std::byte>> buffers);

// Outputs that a check on the host looked at, one by one.
struct Tally {
  explicit Tally(Format y) : format(y) { check.of_bound = 0; }
  // y[row, col], decoded.
  void add(std::int64_t row, std::int64_t col, float got, const Expected& expected);
  Format format;
  HostCheck check;
};

// Task::compare() of y [rows, n] against what a reference kernel wrote: rows * n values, then rows * n largest
// permitted errors. `owners`: the group of each row, -1 for none, whose rows must be as they were before the launch;
// empty without groups. `worst`: the largest error relative to its bound.
std::string compare(Format y, std::int64_t n, std::span<const std::byte> got, std::span<const std::byte> oracle,
                    std::int64_t rows, const std::vector<int>& owners, double& worst);

std::string wrong_at(std::int64_t row, std::int64_t col, float got, double value, double bound);

}  // namespace tilewright::gemm
