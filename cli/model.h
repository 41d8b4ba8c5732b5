// SPDX-License-Identifier: Apache-2.0
// A model's tensor in the place of a task's random weights.
#pragma once

#include <tilewright/task.h>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tilewright::cli {

// Writes the tensor into the buffers of `matrix`: its own bytes where its format is the matrix's, encoded where it
// holds floats. Gives "blk.0.ffn_down (q4_0, as stored)". Throws Error (invalid_argument) if the shape or format
// differs.
std::string load_tensor(const std::string& file, const std::string& tensor, const Matrix& matrix,
                        std::span<const std::span<std::byte>> buffers);

}  // namespace tilewright::cli
