// SPDX-License-Identifier: Apache-2.0
#include "templates/common/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "templates/formats/shared/fast_path.h"

namespace tilewright {
namespace {

// The oracle accumulates in fp64 on CUDA cores: about 1 T multiply-adds/s on an H200. 6.4e10 keep it below 0.3 s with
// the operands' decoding, and leave 129 rows of a 57344 x 8192 matrix: more than one tile of rows.
constexpr double kMostVerifyMacs = 6.4e10;

}  // namespace

const Matrix& add_matrix(Task& task, const std::string& name, const Content& content, bool follows_rows, bool output) {
  Matrix m{name, content.format, content.rows, content.cols, -1, -1, -1, content.inverse_global};
  const auto streams = content.format.info().streams;
  for (int i = 0; i < static_cast<int>(streams.size()); ++i) {
    const StreamSpec& s = streams[static_cast<std::size_t>(i)];
    Buffer b;
    b.name = name + "." + name_of(s.stream);
    b.bytes = static_cast<std::size_t>(content.format.stream_bytes(i, content.rows, content.cols));
    b.output = output && s.scope != Scope::tensor;  // a global scale is an input of every kernel
    if (follows_rows && s.scope != Scope::tensor && s.rows == 1)
      b.row_bytes = static_cast<std::size_t>(content.format.stream_bytes(i, 1, content.cols));
    b.fill = [content, i, name](std::span<std::byte> bytes, std::uint64_t seed) {
      fill_stream(content, i, seed_of(seed, name), bytes);
    };
    m.slot(s.stream) = static_cast<int>(task.buffers.size());
    task.buffers.push_back(std::move(b));
  }
  task.matrices.push_back(std::move(m));
  return task.matrices.back();
}

const Matrix& matrix(const Task& task, std::string_view name) {
  return *std::find_if(task.matrices.begin(), task.matrices.end(), [&](const Matrix& m) { return m.name == name; });
}

MutableOperand operand(const Matrix& m, std::span<void* const> pointers) {
  const auto at = [&](int i) { return i < 0 ? nullptr : pointers[static_cast<std::size_t>(i)]; };
  return {at(m.data), at(m.scales), static_cast<float*>(at(m.global))};
}

MutableOperand operand(const Matrix& m, std::span<const std::span<std::byte>> buffers) {
  const auto at = [&](int i) -> void* { return i < 0 ? nullptr : buffers[static_cast<std::size_t>(i)].data(); };
  return {at(m.data), at(m.scales), static_cast<float*>(at(m.global))};
}

std::function<std::vector<std::byte>(std::span<void* const> pointers, std::int64_t rows)> arguments_by(
    Contract contract, std::vector<LaunchValue> values) {
  return
      [contract = std::move(contract), values = std::move(values)](std::span<void* const> pointers, std::int64_t rows) {
        std::vector<std::byte> bytes(contract.args_bytes);
        contract.write(pointers, rows * contract.rows_per, values, bytes.data());
        return bytes;
      };
}

void take_arguments(const Contract& contract, Task& task) {
  const std::vector<PointerRule>& rules = contract.pointers;
  for (std::size_t i = 0; i < std::max(rules.size(), task.buffers.size()); ++i) {
    std::string_view rule = i < rules.size() ? rules[i].name : "nothing";
    rule = rule.substr(0, rule.find(' '));
    const std::string buffer = i < task.buffers.size() ? task.buffers[i].name : "nothing";
    if (buffer != rule && buffer != std::string(rule) + ".data")
      throw std::logic_error(fmt::format("{}: buffer {} of the task is {}, and pointer {} of the contract is {}",
                                         contract.op, i, buffer, i, rule));
  }
  if (!task.arguments) task.arguments = arguments_by(contract);
}

std::int64_t verify_rows_of(std::int64_t rows, double macs_per_row) {
  if (rows <= 16) return rows;
  // Each is one more than full tiles of some size, which is where row guards go wrong.
  for (std::int64_t r : {257, 129, 65, 33, 17})
    if (r <= rows && static_cast<double>(r) * macs_per_row <= kMostVerifyMacs) return r;
  return std::min<std::int64_t>(rows, 17);
}

float least_deviation(Format f, float wanted) {
  if (f.info().block > 1 || f.info().streams.size() > 1) return wanted;
  const Element e = fast_path(f).element;
  return std::max(wanted, e == Element::i8 || e == Element::i32 ? 16.0f : e == Element::e4m3 ? 0.125f : 0.0f);
}

Outputs row_outputs(const Task& task) {
  Outputs outputs;
  for (const Buffer& b : task.buffers)
    if (b.output) outputs.emplace_back(b.name, b.row_bytes ? b.row_bytes : b.bytes);
  return outputs;
}

std::string compare_bytes(const Outputs& outputs, std::span<const std::byte> got, std::span<const std::byte> expected,
                          std::int64_t rows) {
  std::size_t at = 0;
  for (const auto& [name, row_bytes] : outputs) {
    const std::size_t bytes = row_bytes * static_cast<std::size_t>(rows);
    for (std::size_t i = at; i < at + bytes; ++i)
      if (i >= got.size() || i >= expected.size() || got[i] != expected[i])
        return fmt::format("{} row {} byte {} = {:#04x}, expected {:#04x}", name, (i - at) / row_bytes,
                           (i - at) % row_bytes, i < got.size() ? int(got[i]) : -1,
                           i < expected.size() ? int(expected[i]) : -1);
    at += bytes;
  }
  return {};
}

HostCheck check_bytes(const Task& task, std::span<const std::span<std::byte>> buffers, std::int64_t rows,
                      const std::function<void(std::span<const std::span<std::byte>>)>& compute) {
  std::vector<std::vector<std::byte>> outputs;
  std::vector<std::span<std::byte>> again(buffers.begin(), buffers.end());
  std::vector<std::byte> got, expected;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (task.buffers[i].output) {
      got.insert(got.end(), buffers[i].begin(), buffers[i].end());
      again[i] = outputs.emplace_back(buffers[i].size());
    }
  compute(again);
  for (const std::vector<std::byte>& o : outputs) expected.insert(expected.end(), o.begin(), o.end());
  HostCheck check;
  check.wrong = compare_bytes(row_outputs(task), got, expected, rows);
  return check;
}

std::vector<float> decoded(const Matrix& m, std::span<const std::span<std::byte>> buffers) {
  MutableOperand from = operand(m, buffers);
  float factor = from.global ? *from.global : 1.0f;
  if (m.inverse_global) factor = 1.0f / factor;
  HostStreams plain(m.format, m.restore ? m.rows : 0, m.restore ? m.cols : 0);
  if (m.restore) {
    m.restore(from, plain.operand);
    from = plain.operand;
  }
  if (from.global) from.global = &factor;
  std::vector<float> values(static_cast<std::size_t>(m.rows * m.cols));
  m.format.info().decode(from, m.rows, m.cols, values.data());
  return values;
}

std::vector<float> through(Format format, std::int64_t rows, std::int64_t cols, const std::vector<float>& values) {
  HostStreams streams(format, rows, cols);
  format.info().encode(values.data(), rows, cols, streams.operand, 0);
  std::vector<float> rounded(values.size());
  format.info().decode(streams.operand, rows, cols, rounded.data());
  return rounded;
}

HostStreams::HostStreams(Format format, std::int64_t rows, std::int64_t cols) {
  const auto streams = format.info().streams;
  for (int i = 0; i < static_cast<int>(streams.size()); ++i) {
    bytes_.emplace_back(static_cast<std::size_t>(format.stream_bytes(i, rows, cols)));
    void* data = bytes_.back().data();
    const StreamName stream = streams[static_cast<std::size_t>(i)].stream;
    operand.set(stream, data);
    if (stream == StreamName::global) *operand.global = 1.0f;
  }
}

}  // namespace tilewright
