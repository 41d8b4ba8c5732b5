// SPDX-License-Identifier: Apache-2.0
// Whether a result is right, given the exact value and the largest error that a correct kernel may make.
#pragma once

#include <tilewright/format.h>

#include <cstdint>
#include <string>

namespace tilewright::gemm {

struct Judged {
  bool right = false;
  double of_bound = 0;  // the error relative to the bound, where both are numbers
};

// `got`: decoded from y's format. Infinities are right where the value is the same one, or where the bound lets the
// value round to one in y; NaN only where it is NaN.
Judged judge(Format y, float got, double value, double bound);

std::string wrong_at(std::int64_t row, std::int64_t col, float got, double value, double bound);

}  // namespace tilewright::gemm
