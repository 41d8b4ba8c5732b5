// SPDX-License-Identifier: Apache-2.0
// Parts of Operation::describe() and of the host's work that operations share: matrices in buffers, argument structs as
// bytes, judging by bytes, decoded values.
#pragma once

#include <tilewright/operation.h>
#include <tilewright/task.h>

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "templates/common/fill.h"

namespace tilewright {

// Adds a matrix and a buffer for each of its streams. `follows_rows`: its rows are the launch's.
const Matrix& add_matrix(Task& task, const std::string& name, const Content& content, bool follows_rows, bool output);
const Matrix& matrix(const Task& task, std::string_view name);  // precondition: it is there

// The pointers of a matrix among those of all buffers.
MutableOperand operand(const Matrix& m, std::span<void* const> pointers);
MutableOperand operand(const Matrix& m, std::span<const std::span<std::byte>> buffers);

// Task::arguments by the contract alone; values as Contract::write() takes them.
std::function<std::vector<std::byte>(std::span<void* const> pointers, std::int64_t rows)> arguments_by(
    Contract contract, std::vector<LaunchValue> values = {});
// Gives a task that has none these arguments. Throws std::logic_error unless each of its buffers has a pointer of the
// same name, in order.
void take_arguments(const Contract& contract, Task& task);

template <class Args>
std::vector<std::byte> bytes_of(const Args& args) {
  std::vector<std::byte> bytes(sizeof args);
  std::memcpy(bytes.data(), &args, sizeof args);
  return bytes;
}

// Rows to verify at: few enough for an oracle of `macs_per_row` multiply-adds a row, and one more than whole tiles.
std::int64_t verify_rows_of(std::int64_t rows, double macs_per_row);

// For formats without scales, values cover the range of codes: else integers would be zero, and fp8 subnormal.
float least_deviation(Format f, float wanted);

// Every byte counts. `outputs`: the name of each output buffer, and its bytes per row.
using Outputs = std::vector<std::pair<std::string, std::size_t>>;
Outputs row_outputs(const Task& task);
std::string compare_bytes(const Outputs& outputs, std::span<const std::byte> got, std::span<const std::byte> expected,
                          std::int64_t rows);

// The outputs against those that `compute` writes into copies of the output buffers.
HostCheck check_bytes(const Task& task, std::span<const std::span<std::byte>> buffers, std::int64_t rows,
                      const std::function<void(std::span<const std::span<std::byte>>)>& compute);

// A matrix decoded on the host, as Matrix::restore and its factor say.
std::vector<float> decoded(const Matrix& m, std::span<const std::span<std::byte>> buffers);
// A matrix's values rounded to another format and back by its default encoder.
std::vector<float> through(Format format, std::int64_t rows, std::int64_t cols, const std::vector<float>& values);

// Streams of one matrix in host memory.
struct HostStreams {
  HostStreams(Format format, std::int64_t rows, std::int64_t cols);
  MutableOperand operand;

 private:
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace tilewright
