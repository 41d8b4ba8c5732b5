// SPDX-License-Identifier: Apache-2.0
// Convolutions on the host, for the benchmarks: a layer's axes, and a few outputs in double precision, which every
// kernel's and rival's result is compared with before its time counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <tilewright/conv.h>
#include <tilewright/task.h>

namespace tilewright::bench {

struct ConvAxis {
  std::int64_t in, out, kernel, stride, before, behind, dilation;
};
std::vector<ConvAxis> axes_of(const Conv& conv);  // outermost first, with what the problem leaves to its defaults

struct ExpectedOutput {
  std::size_t index;   // of the element in y, as it lies in memory
  double value, norm;  // norm: of its products
};

// `count` outputs spread over y, of inputs as the task fills them with seed 1. Throws Error (unsupported) for a conv
// with factors, an activation, or padding that is not zero.
std::vector<ExpectedOutput> expected_outputs(const Conv& conv, const Task& task, int count);

// The largest |y - value| relative to |value| + norm; infinite if one is no number.
double worst_error(std::span<const ExpectedOutput> expected, const std::function<double(std::size_t)>& y);

}  // namespace tilewright::bench
