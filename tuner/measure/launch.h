// SPDX-License-Identifier: Apache-2.0
// A task's candidate as something that can be launched over given buffers.
#pragma once

#include <span>
#include <vector>

#include <tilewright/kernel.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

#include "jit/kernel.h"

namespace tilewright::tuner {

// One binary for every number of rows.
inline Kernel kernel_of(const Task& task, const Device& device, const jit::BinaryPtr& binary,
                        const Candidate& candidate = {}) {
  Contract contract = task.contract;
  if (contract.cols == 0) contract.cols = task.cols;
  return jit::make_kernel(device, {{binary}, {candidate}, {}, {}}, std::move(contract));
}

inline void launch_over(const Task& task, const Kernel& kernel, Stream stream, std::span<void* const> pointers,
                        std::int64_t rows) {
  std::vector<std::byte> arguments = task.arguments(pointers, rows);
  kernel.launch(stream, arguments, rows, task.cols);
}

// Bytes of a buffer that a launch over `rows` rows uses.
inline std::size_t bytes_at(const Buffer& b, std::int64_t rows) {
  return b.row_bytes ? b.row_bytes * static_cast<std::size_t>(rows) : b.bytes;
}

}  // namespace tilewright::tuner
