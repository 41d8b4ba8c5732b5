// SPDX-License-Identifier: Apache-2.0
// The operation fp4_fake_quant. It is exact: a kernel gives the host's bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/operation_of.h"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"
#include "templates/operations/fp4_fake_quant/params.cuh"

namespace tilewright::fp4_fake_quant {
namespace {

using Args = Fp4FakeQuantArgs;
static_assert(sizeof(Args) == sizeof(tw::fp4_fake_quant::Args) &&
              offsetof(Args, x) == offsetof(tw::fp4_fake_quant::Args, x) &&
              offsetof(Args, y) == offsetof(tw::fp4_fake_quant::Args, y) &&
              offsetof(Args, amax) == offsetof(tw::fp4_fake_quant::Args, amax) &&
              offsetof(Args, rows) == offsetof(tw::fp4_fake_quant::Args, rows));

constexpr int kSizes[] = {8, 16, 32, 64, 128, 256};

struct Fields {
  static Fp4FakeQuant blank(Format any) { return {.x = any, .y = any}; }
  template <class Q, class V>
  static void visit(Q& problem, V&& visit) {
    auto& [x, y, rows, cols, block] = problem;
    visit(required("x", "input, [rows, cols]: f32 f16 bf16"), x);
    visit(required("y", "result, [rows, cols]: f32 f16 bf16"), y);
    visit(required("rows", "rows", Role::rows), rows);
    visit(required("cols", "columns", Role::size), cols);
    visit(optional("block", "elements that share a scale: 8 16 32 64 128 256; 16 by default"), block);
  }
};

class Fp4FakeQuantOperation final : public OperationOf<Fp4FakeQuant, Fields> {
 public:
  std::string_view title() const override { return "rounds floats to FP4 values in blocks of each row"; }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&blocks(), &reference()};
    return list;
  }

 protected:
  void check(const Fp4FakeQuant& p) const override {
    check_extent("rows", p.rows);
    check_some("cols", p.cols, "rows");
    for (const auto& [field, f] : {std::pair{"x", p.x}, std::pair{"y", p.y}}) {
      check_float(field, f);
      check_matrix(field, f, p.rows, p.cols, "cols");
    }
    if (std::find(std::begin(kSizes), std::end(kSizes), p.block) == std::end(kSizes))
      throw must_be("block", p.block, fmt::format("one of {}", fmt::join(kSizes, ", ")));
  }
  Extents extents_of(const Fp4FakeQuant& p) const override { return {p.rows, p.cols}; }
  void set_rows(Fp4FakeQuant& p, std::int64_t rows) const override { p.rows = rows; }
  double bytes_of(const Fp4FakeQuant& p) const override {
    return static_cast<double>(p.x.total_bytes(p.rows, p.cols)) + static_cast<double>(p.y.total_bytes(p.rows, p.cols)) +
           sizeof(float);
  }
  double ops_of(const Fp4FakeQuant&) const override { return 0; }

  Contract contract_of(const Fp4FakeQuant& p) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(Args);
    c.rows_at = offsetof(Args, rows);
    c.rows_name = "rows";
    c.cols = p.cols;
    c.pointers = {{"x", offsetof(Args, x), 16, true},
                  {"y", offsetof(Args, y), 16, true},
                  {"amax", offsetof(Args, amax), alignof(float), true}};
    const tw::fp4_fake_quant::Shape shape{p.cols};
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const Fp4FakeQuant& p, Task& task) const override {
    task.weights = 0;
    add_matrix(task, "x", {p.x, p.rows, p.cols}, true, false);
    add_matrix(task, "y", {p.y, p.rows, p.cols}, true, true);
    add_amax(task);
    task.verify_rows = verify_rows_of(p.rows, static_cast<double>(p.cols));
    task.compare = [outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                                 std::span<const std::vector<std::byte>>, std::int64_t rows) {
      return compare_bytes(outputs, got, oracle, rows);
    };
  }

  void compute(const Fp4FakeQuant& p, const Task& task, HostBuffers buffers) const override {
    std::vector<float> values = decoded(matrix(task, "x"), buffers);
    fake_quantize(values.data(), values.data(), p.rows, p.cols, p.block,
                  static_cast<const float*>(operand(matrix(task, "amax"), buffers).data));
    p.y.info().encode(values.data(), p.rows, p.cols, operand(matrix(task, "y"), buffers), 0);
  }

  HostCheck judge(const Fp4FakeQuant& p, const Task& task, HostBuffers buffers) const override {
    HostCheck check = check_bytes(task, buffers, p.rows, [&](HostBuffers again) { compute(p, task, again); });
    check.checked = check.outputs = p.rows * p.cols;
    const std::vector<float> from = decoded(matrix(task, "x"), buffers), to = decoded(matrix(task, "y"), buffers);
    for (std::size_t i = 0; i < from.size(); ++i)
      check.largest_error = std::max(check.largest_error, std::fabs(static_cast<double>(to[i]) - from[i]));
    return check;
  }
};

}  // namespace

void add_amax(Task& task) {
  const int amax = add_matrix(task, "amax", {Format::parse("f32"), 1, 1}, false, false).data;
  task.buffers[static_cast<std::size_t>(amax)].fill = [](std::span<std::byte> bytes, std::uint64_t) {
    constexpr float kAmax = 3.0f;
    std::memcpy(bytes.data(), &kAmax, sizeof kAmax);
  };
}

const Operation& operation() {
  static const Fp4FakeQuantOperation operation;
  return operation;
}

}  // namespace tilewright::fp4_fake_quant
