// SPDX-License-Identifier: Apache-2.0
// The operation amax. It is exact: a kernel gives the host's bits.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/operation_of.h"
#include "templates/operations/amax/amax.h"
#include "templates/operations/amax/params.cuh"

namespace tilewright::amax {
namespace {

static_assert(sizeof(AmaxArgs) == sizeof(tw::amax::Args) &&
              offsetof(AmaxArgs, amax) == offsetof(tw::amax::Args, amax) &&
              offsetof(AmaxArgs, workspace) == offsetof(tw::amax::Args, workspace) &&
              offsetof(AmaxArgs, rows) == offsetof(tw::amax::Args, rows));

struct Fields {
  static Amax blank(Format any) { return {.x = any}; }
  template <class P, class V>
  static void visit(P& problem, V&& visit) {
    auto& [x, rows, cols] = problem;
    visit(required("x", "tensor, [rows, cols]: f32 f16 bf16"), x);
    visit(required("rows", "rows", Role::rows), rows);
    visit(required("cols", "columns", Role::size), cols);
  }
};

class AmaxOperation final : public OperationOf<Amax, Fields> {
 public:
  std::string_view title() const override { return "the largest magnitude of a tensor"; }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&vectors(), &reference()};
    return list;
  }

 protected:
  void check(const Amax& a) const override {
    check_extent("rows", a.rows);
    check_some("cols", a.cols, "rows");
    check_float("x", a.x);
    check_matrix("x", a.x, a.rows, a.cols, "cols");
  }
  Extents extents_of(const Amax& a) const override { return {a.rows, a.cols}; }
  void set_rows(Amax& a, std::int64_t rows) const override { a.rows = rows; }
  double bytes_of(const Amax& a) const override {
    return static_cast<double>(a.x.total_bytes(a.rows, a.cols)) + sizeof(float);
  }
  double ops_of(const Amax&) const override { return 0; }

  Contract contract_of(const Amax& a) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(AmaxArgs);
    c.rows_at = offsetof(AmaxArgs, rows);
    c.rows_name = "rows";
    c.cols = a.cols;
    c.pointers = {{"x", offsetof(AmaxArgs, x), 16, true},
                  {"amax", offsetof(AmaxArgs, amax), alignof(float), true},
                  {"workspace", offsetof(AmaxArgs, workspace), Amax::kWorkspace, true}};
    const tw::amax::Shape shape{a.cols};
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const Amax& a, Task& task) const override {
    task.weights = 0;
    add_matrix(task, "x", {a.x, a.rows, a.cols}, true, false);
    add_matrix(task, "amax", {Format::parse("f32"), 1, 1}, false, true);
    task.buffers.push_back({.name = "workspace", .bytes = Amax::kWorkspace, .fill = {}, .scratch = true});
    task.verify_rows = verify_rows_of(a.rows, static_cast<double>(a.cols));
    task.compare = [outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                                 std::span<const std::vector<std::byte>>,
                                                 std::int64_t) { return compare_bytes(outputs, got, oracle, 1); };
  }

  void compute(const Amax&, const Task& task, HostBuffers buffers) const override {
    const float most = largest_magnitude(decoded(matrix(task, "x"), buffers));
    std::memcpy(operand(matrix(task, "amax"), buffers).data, &most, sizeof most);
  }

  // By comparisons of doubles, which share nothing with the kernels' bits.
  HostCheck judge(const Amax&, const Task& task, HostBuffers buffers) const override {
    double most = 0;
    bool nan = false;
    for (const float v : decoded(matrix(task, "x"), buffers)) {
      nan = nan || std::isnan(v);
      most = std::max(most, std::fabs(static_cast<double>(v)));
    }
    float got = 0;
    std::memcpy(&got, operand(matrix(task, "amax"), buffers).data, sizeof got);
    HostCheck check;
    check.checked = check.outputs = 1;
    const bool right = nan ? std::bit_cast<std::uint32_t>(got) == tw::amax::kNan
                           : static_cast<double>(got) == most && !std::signbit(got);
    if (!right) check.wrong = fmt::format("amax = {}, expected {}", got, nan ? NAN : most);
    check.infinite = !std::isfinite(got);
    return check;
  }
};

}  // namespace

float largest_magnitude(std::span<const float> values) {
  std::uint32_t most = 0;
  for (const float v : values) most = std::max(most, tw::amax::magnitude_bits(v));
  return tw::amax::from_magnitude_bits(most);
}

const Operation& operation() {
  static const AmaxOperation operation;
  return operation;
}

}  // namespace tilewright::amax
