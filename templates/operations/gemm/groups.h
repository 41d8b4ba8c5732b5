// SPDX-License-Identifier: Apache-2.0
// A grouped gemm's buffers on the host: stacks of weights, and which rows belong to which group.
#pragma once

#include <tilewright/gemm.h>
#include <tilewright/task.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tilewright::gemm {

// From the buffers of one matrix to those of a stack, each of other content.
void stack(std::span<Buffer> buffers, int groups);

// The input of GemmArgs::group_rows. A table is for one number of rows, so there is one for each step of rows
// (row_step()): group_rows_at() is where that of a launch begins, in integers. Odd seeds divide the rows evenly, which
// is what is timed; even ones leave groups empty, give one half of the rows, and let some belong to none.
Buffer group_rows_buffer(const Gemm& gemm);
std::int64_t group_rows_at(const Gemm& gemm, std::int64_t rows);

// The group of each row of y of a launch of `rows` rows per group, -1 for none, by the content of that buffer. Throws
// Error (invalid_argument) naming the first offset or count that is not allowed.
std::vector<int> owners_of_rows(const Gemm& gemm, std::int64_t rows, std::span<const std::byte> buffer);

}  // namespace tilewright::gemm
