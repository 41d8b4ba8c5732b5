// SPDX-License-Identifier: Apache-2.0
// The operation fp4_fake_quant, its kernel families, and the values that it computes.
#pragma once

#include <tilewright/fake_quant.h>
#include <tilewright/operation.h>
#include <tilewright/task.h>

#include <cstdint>

namespace tilewright::fp4_fake_quant {

const Operation& operation();
const Family& blocks();
const Family& reference();

// y[rows, cols] on the host, in single precision; blocks begin anew in each row.
void fake_quantize(const float* x, float* y, std::int64_t rows, std::int64_t cols, int block, const float* amax);
// The same of `count` elements, by the calling thread alone.
void fake_quantize_run(const float* x, float* y, std::int64_t count, int block, const float* amax);

// Adds the largest magnitude of a tensor of values about N(0, 1), of which it clips some; its place among the buffers.
void add_amax(Task& task);

}  // namespace tilewright::fp4_fake_quant
