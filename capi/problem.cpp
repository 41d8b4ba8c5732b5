// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <span>

#include "capi/handles.h"

const tilewright::Task& tw_problem::described() const {
  std::call_once(once_, [&] {
    described_.contract = value.operation().contract(value);
    value.operation().describe(value, described_);
  });
  return described_;
}

namespace tilewright::capi {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

// A value is one word of the text, so that what stands in it cannot add fields.
Problem problem_of(std::string_view op, const Fields& fields) {
  std::string text(op);
  for (const auto& [name, value] : fields) {
    if (name.empty() || name.find_first_of(" \t\r\n=#") != name.npos)
      refuse("name", name, "must be the name of a field");
    if (value.empty() || value.find_first_of(" \t\r\n#") != value.npos) refuse(name, value, "must be one word");
    text += fmt::format(" {}={}", name, value);
  }
  (void)operation(op);  // says which there are, where parse() would see a field without '='
  return Problem::parse(text);
}

Fields fields_of(const tw_gemm& g) {
  Fields fields;
  const auto word = [&](const char* name, const char* value) {
    if (value) fields.emplace_back(name, value);
  };
  const auto count = [&](const char* name, std::int64_t value, bool always = false) {
    if (value != 0 || always) fields.emplace_back(name, std::to_string(value));
  };
  const auto number = [&](const char* name, double value) {
    if (value != 1.0) fields.emplace_back(name, fmt::format("{}", value));
  };
  word("x", g.x);
  word("w", g.w);
  word("y", g.y);
  count("m", g.m, true);
  count("n", g.n, true);
  count("k", g.k, true);
  word("global", g.global);
  word("pack", g.pack);
  word("x_from", g.x_from);
  word("bias", g.bias);
  word("accum", g.accum);
  word("act", g.act);
  number("alpha", g.alpha);
  word("c", g.c);
  number("beta", g.beta);
  number("y_scale", g.y_scale);
  count("workspace", g.workspace);
  if (g.constant_weights) fields.emplace_back("weights", "constant");
  count("groups", g.groups);
  word("group_layout", g.group_layout);
  return fields;
}

// The matrix of a buffer, and which of its streams it is; null: none.
std::pair<const Matrix*, int> matrix_of(const Task& task, int buffer) {
  for (const Matrix& m : task.matrices) {
    const auto streams = m.format.info().streams;
    for (std::size_t i = 0; i < streams.size(); ++i)
      if (m.slot(streams[i].stream) == buffer) return {&m, static_cast<int>(i)};
  }
  return {nullptr, -1};
}

tw_buffer_info info_of(const tw_problem& problem, std::size_t index) {
  const Task& task = problem.described();
  const Contract& contract = task.contract;
  const Buffer& b = task.buffers[index];
  const PointerRule& rule = contract.pointers[index];
  const auto [matrix, stream] = matrix_of(task, static_cast<int>(index));
  const auto bytes = static_cast<std::int64_t>(b.bytes), row_bytes = static_cast<std::int64_t>(b.row_bytes);
  tw_buffer_info info = TW_BUFFER_INFO_INIT;
  info.output = b.output;
  info.scratch = b.scratch;
  info.optional = !rule.required;
  info.align = rule.align;
  info.bytes = bytes;
  info.row_bytes = row_bytes;
  if (b.launch_bytes)
    info.launch_bytes = static_cast<std::int64_t>(b.launch_bytes);
  else if (row_bytes == 0 || contract.rows_at == Contract::kFixedRows)
    info.launch_bytes = bytes;
  info.line_bytes = row_bytes;
  info.name = b.name.c_str();
  info.format = b.element.c_str();
  if (matrix && !matrix->store) {
    const StreamSpec& s = matrix->format.info().streams[static_cast<std::size_t>(stream)];
    info.line_bytes = s.scope == Scope::tensor || s.rows > 1 ? 0 : matrix->format.stream_bytes(stream, 1, matrix->cols);
    info.cols = matrix->any_axes ? 0 : matrix->cols;
    info.format = matrix->format.name().data();
  }
  info.stride = "";
  for (const StrideRule& stride : contract.strides)
    if (stride.pointer == rule.offset) info.stride = stride.name;
  return info;
}

tw_value_info info_of(const Contract& contract, std::size_t index) {
  tw_value_info info = TW_VALUE_INFO_INIT;
  const std::size_t strides = contract.strides.size(), factors = strides + contract.factors.size();
  info.is_integer = index < strides || index >= factors;
  if (!info.is_integer) info.by_default.number = 1;
  info.name = index < strides   ? contract.strides[index].name
              : index < factors ? contract.factors[index - strides].name
                                : contract.integers[index - factors].name;
  return info;
}

// Of a function that returns -1 instead of an error.
template <class Count>
std::int32_t count_of(const tw_problem* problem, const Count& count) {
  std::size_t found = 0;
  if (problem == nullptr) return -1;
  return guarded(nullptr, [&] { found = count(handle(problem).described()); }) == TW_OK ? static_cast<int32_t>(found)
                                                                                        : -1;
}

std::vector<std::span<std::byte>> host_buffers(const Task& task, void* const* buffers, const std::size_t* bytes,
                                               std::size_t count) {
  if (count != task.buffers.size())
    refuse("count", std::to_string(count), fmt::format("must be {}, the problem's buffers", task.buffers.size()));
  std::vector<std::span<std::byte>> spans;
  for (std::size_t i = 0; i < count; ++i) {
    const Buffer& b = task.buffers[i];
    auto* data = static_cast<std::byte*>((&required(buffers, "buffers"))[i]);
    if (data == nullptr && b.bytes != 0) refuse(b.name, "null", fmt::format("must be memory of {} bytes", b.bytes));
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
      refuse(b.name, fmt::format("{}", fmt::ptr(data)), "must be aligned to 16 bytes");
    if ((&required(bytes, "bytes"))[i] != b.bytes)
      refuse(b.name, fmt::format("{} bytes", bytes[i]), fmt::format("must have {} bytes", b.bytes));
    spans.emplace_back(data, b.bytes);
  }
  return spans;
}

}  // namespace
}  // namespace tilewright::capi

using namespace tilewright;
using namespace tilewright::capi;

extern "C" {

tw_status tw_problem_parse(const char* problem_text, tw_problem** problem, tw_error** error) {
  return guarded(error, [&] { create(problem, "problem", Problem::parse(text(problem_text, "text"))); });
}

tw_status tw_problem_create(const char* op, const char* const* names, const char* const* values, size_t count,
                            tw_problem** problem, tw_error** error) {
  return guarded(error, [&] {
    Fields fields;
    for (size_t i = 0; i < count; ++i) {
      const char* name = text((&required(names, "names"))[i], "names");
      fields.emplace_back(name, text((&required(values, "values"))[i], name));
    }
    create(problem, "problem", problem_of(text(op, "operation"), fields));
  });
}

tw_status tw_problem_from_gemm(const tw_gemm* gemm, tw_problem** problem, tw_error** error) {
  return guarded(error, [&] {
    const tw_gemm g = read_struct(gemm, "gemm");
    for (const auto& [name, format] : {std::pair{"x", g.x}, {"w", g.w}, {"y", g.y}}) text(format, name);
    check_flag(g.constant_weights, "constant_weights");
    create(problem, "problem", problem_of(Gemm::kOperation, fields_of(g)));
  });
}

tw_status tw_problem_with_rows(const tw_problem* problem, int64_t rows, tw_problem** other, tw_error** error) {
  return guarded(error, [&] { create(other, "other", handle(problem).value.with_rows(rows)); });
}

const char* tw_problem_text(const tw_problem* problem) { return is_handle(problem) ? problem->text.c_str() : nullptr; }
const char* tw_problem_operation(const tw_problem* problem) {
  return is_handle(problem) ? problem->value.operation().name().data() : nullptr;
}
int64_t tw_problem_rows(const tw_problem* problem) { return is_handle(problem) ? problem->value.rows() : -1; }
int64_t tw_problem_cols(const tw_problem* problem) { return is_handle(problem) ? problem->value.cols() : -1; }
double tw_problem_min_bytes(const tw_problem* problem) { return is_handle(problem) ? problem->value.min_bytes() : -1; }
double tw_problem_ops(const tw_problem* problem) { return is_handle(problem) ? problem->value.ops() : -1; }
void tw_problem_retain(tw_problem* problem) { retain(problem); }
void tw_problem_release(tw_problem* problem) { release(problem); }

int32_t tw_problem_buffer_count(const tw_problem* problem) {
  return count_of(problem, [](const Task& task) { return task.buffers.size(); });
}

tw_status tw_problem_buffer(const tw_problem* problem, int32_t index, tw_buffer_info* info, tw_error** error) {
  return guarded(error, [&] {
    const std::size_t count = handle(problem).described().buffers.size();
    write_struct(info, info_of(*problem, index_of(index, count, "index")), "info");
  });
}

tw_status tw_problem_rows_info(const tw_problem* problem, tw_rows_info* info, tw_error** error) {
  return guarded(error, [&] {
    const Contract& c = handle(problem).described().contract;
    write_struct(info, {0, c.rows_at == Contract::kFixedRows, c.rows_per, c.rows_name.c_str()}, "info");
  });
}

int32_t tw_problem_value_count(const tw_problem* problem) {
  return count_of(problem, [](const Task& task) { return task.contract.value_count(); });
}

tw_status tw_problem_value(const tw_problem* problem, int32_t index, tw_value_info* info, tw_error** error) {
  return guarded(error, [&] {
    const Contract& c = handle(problem).described().contract;
    write_struct(info, info_of(c, index_of(index, c.value_count(), "index")), "info");
  });
}

tw_status tw_compute_on_host(const tw_problem* problem, void* const* buffers, const size_t* bytes, size_t count,
                             tw_error** error) {
  return guarded(error, [&] {
    const Task& task = handle(problem).described();
    problem->value.operation().run_on_host(problem->value, task, host_buffers(task, buffers, bytes, count));
  });
}

tw_status tw_check_on_host(const tw_problem* problem, void* const* buffers, const size_t* bytes, size_t count,
                           tw_host_check* check, char** wrong, tw_error** error) {
  return guarded(error, [&] {
    const Task& task = handle(problem).described();
    required(wrong, "wrong");
    const HostCheck found =
        problem->value.operation().check_on_host(problem->value, task, host_buffers(task, buffers, bytes, count));
    write_struct(check,
                 {0, found.checked, found.outputs, found.largest_error, found.of_bound.value_or(-1), found.infinite},
                 "check");
    *wrong = found.wrong.empty() ? nullptr : copy_text(found.wrong);
  });
}

}  // extern "C"
