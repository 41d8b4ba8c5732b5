// SPDX-License-Identifier: Apache-2.0
// A packed weight matrix among a task's buffers.
#pragma once

#include <tilewright/gemm.h>
#include <tilewright/task.h>

#include <string>

namespace tilewright::gemm {

// The problem whose w is packed so, as far as packing goes.
Gemm packed_gemm(Format w, Format x, std::int64_t n, std::int64_t k, Packing packing);

// Adds the packed w of a problem with pack=tiles or panels and a buffer for each of its streams. `deviation`: of its
// values.
const Matrix& add_packed(Task& task, const std::string& name, const Gemm& gemm, float deviation, bool output);

}  // namespace tilewright::gemm
