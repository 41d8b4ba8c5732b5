// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstring>

#include "operation/row_scale/params.cuh"
#include "operation/row_scale/row_scale.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/knobs.h"
#include "templates/common/operation_of.h"
#include "templates/common/specialize.h"

namespace tilewright::row_scale {
namespace {

static_assert(sizeof(RowScaleArgs) == sizeof(tw::row_scale::Args));

struct Fields {
  static RowScale blank(Format any) { return {.x = any, .y = any}; }
  template <class P, class V>
  static void visit(P& problem, V&& visit) {
    auto& [x, y, rows, cols, factor] = problem;
    visit(required("x", "input, [rows, cols]: f32 f16 bf16"), x);
    visit(required("y", "result, [rows, cols]: f32 f16 bf16"), y);
    visit(required("rows", "rows", Role::rows), rows);
    visit(required("cols", "columns", Role::size), cols);
    visit(optional("factor", "of every row"), factor);
  }
};

// One kernel, as a family with a choice of block sizes and as the reference.
class Plain final : public EnumeratedFamily {
 public:
  Plain(std::string_view name, std::string_view title, std::vector<int> threads)
      : name_(name), title_(title), threads_(std::move(threads)) {}
  std::string_view op() const override { return RowScale::kOperation; }
  std::string_view name() const override { return name_; }
  std::string_view title() const override { return title_; }
  std::string why_not(const Problem& problem, const Arch&) const override {
    return problem.as<RowScale>() ? "" : "not a row_scale";
  }
  std::vector<Candidate> candidates(const Problem&, const Arch&) const override {
    std::vector<Candidate> all;
    for (const int threads : threads_) all.push_back({std::string(name_), {{"threads", threads}}});
    return all;
  }
  Source source(const Problem& problem, const Arch&, const Candidate& candidate) const override {
    const RowScale& p = *problem.as<RowScale>();
    const auto threads = static_cast<std::uint32_t>(candidate.at("threads"));
    Specialization s;
    s.name = fmt::format("row_scale/{}", name_);
    s.includes = {"row_scale/kernel.cuh", fmt::format("formats/{}.cuh", p.x.name()),
                  fmt::format("formats/{}.cuh", p.y.name())};
    s.plan_type = fmt::format("tw::row_scale::Plain<tw::fmt::{}, tw::fmt::{}, {}>", p.x.name(), p.y.name(), threads);
    s.space = "tw::row_scale";
    s.plan.x = {1, 1, threads};
    s.plan.threads = threads;
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate& candidate) const override {
    Traits t;
    t.tile_cols = t.threads = static_cast<int>(candidate.at("threads"));
    t.registers = 16;
    t.blocks = static_cast<double>(problem.rows()) * static_cast<double>(problem.cols()) / t.threads;
    t.global_bytes = t.unique_bytes = problem.min_bytes();
    t.bytes_in_flight = 4;
    t.alu_ops = static_cast<double>(problem.rows()) * static_cast<double>(problem.cols()) * 4;
    return t;
  }

 private:
  std::string_view name_, title_;
  std::vector<int> threads_;
};

class RowScaleOperation final : public OperationOf<RowScale, Fields> {
 public:
  std::string_view title() const override { return "rows times a factor of their own"; }
  std::span<const Family* const> families() const override {
    static const Plain plain("plain", "one thread per element", {128, 256, 64});
    static const Plain reference("reference", "the same, in blocks of one warp", {32});
    static const Family* const list[] = {&plain, &reference};
    return list;
  }
  std::optional<Candidate> oracle(const Problem&, const Arch&) const override { return {}; }  // compare() judges alone

 protected:
  void check(const RowScale& p) const override {
    check_extent("rows", p.rows);
    check_some("cols", p.cols, "rows");
    for (const auto& [field, f] : {std::pair{"x", p.x}, std::pair{"y", p.y}}) {
      if (!is_float(f)) throw unsupported(field, f, "f32, f16 or bf16");
      check_matrix(field, f, p.rows, p.cols, "cols");
    }
    check_factor("factor", p.factor);
  }
  Extents extents_of(const RowScale& p) const override { return {p.rows, p.cols}; }
  void set_rows(RowScale& p, std::int64_t rows) const override { p.rows = rows; }
  double bytes_of(const RowScale& p) const override {
    return static_cast<double>(p.x.total_bytes(p.rows, p.cols) + p.y.total_bytes(p.rows, p.cols) + 4 * p.rows);
  }
  double ops_of(const RowScale&) const override { return 0; }

  Contract contract_of(const RowScale& p) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(RowScaleArgs);
    c.rows_at = offsetof(RowScaleArgs, rows);
    c.rows_name = "rows";
    c.cols = p.cols;
    c.pointers = {{"x", offsetof(RowScaleArgs, x), 16, true},
                  {"scales", offsetof(RowScaleArgs, scales), 4, true},
                  {"y", offsetof(RowScaleArgs, y), 16, true}};
    const tw::row_scale::Shape shape{p.cols, static_cast<float>(p.factor)};
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const RowScale& p, Task& task) const override {
    add_matrix(task, "x", {p.x, p.rows, p.cols}, true, false);
    add_matrix(task, "scales", {Format::parse("f32"), p.rows, 1}, true, false);
    add_matrix(task, "y", {p.y, p.rows, p.cols}, true, true);
    task.weights = 0;
    task.verify_rows = verify_rows_of(p.rows, static_cast<double>(p.cols));
    task.compare = [p, outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte>,
                                                    std::span<const std::vector<std::byte>> inputs, std::int64_t rows) {
      std::vector<std::byte> expected(got.size());
      RowScale part = p;
      part.rows = rows;
      multiply(part, inputs[0].data(), inputs[1].data(), expected.data());
      return compare_bytes(outputs, got, expected, rows);
    };
  }

  void compute(const RowScale& p, const Task&, HostBuffers buffers) const override {
    multiply(p, buffers[0].data(), buffers[1].data(), buffers[2].data());
  }
  HostCheck judge(const RowScale& p, const Task& task, HostBuffers buffers) const override {
    HostCheck check = check_bytes(task, buffers, p.rows, [&](HostBuffers again) { compute(p, task, again); });
    check.checked = check.outputs = p.rows * p.cols;
    return check;
  }

 private:
  static void multiply(const RowScale& p, const void* x, const void* scales, void* y) {
    std::vector<float> values(static_cast<std::size_t>(p.rows * p.cols));
    p.x.info().decode({x, nullptr, nullptr}, p.rows, p.cols, values.data());
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const float scale = static_cast<float>(p.factor) * static_cast<const float*>(scales)[r];
      for (std::int64_t c = 0; c < p.cols; ++c) values[static_cast<std::size_t>(r * p.cols + c)] *= scale;
    }
    p.y.info().encode(values.data(), p.rows, p.cols, {y, nullptr, nullptr}, 0);
  }
};

}  // namespace

const Operation& operation() {
  static const RowScaleOperation operation;
  return operation;
}

}  // namespace tilewright::row_scale
