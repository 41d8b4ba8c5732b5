// SPDX-License-Identifier: Apache-2.0
// The operation cast. Casts are exact: a kernel gives the bytes of the format's scalar codec.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/operation_of.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/cast/cast.h"
#include "templates/operations/cast/cpu/cast.h"
#include "templates/operations/cast/params.cuh"
#include "templates/operations/cast/stochastic.h"

namespace tilewright::cast {
namespace {

static_assert(sizeof(tw::cast::Args) == sizeof(CastArgs) && offsetof(tw::cast::Args, y) == offsetof(CastArgs, y) &&
              offsetof(tw::cast::Args, rows) == offsetof(CastArgs, rows) &&
              offsetof(tw::cast::Args, seed) == offsetof(CastArgs, seed));

constexpr const char* kRoundings[] = {"nearest", "stochastic"};
constexpr std::uint64_t kTaskSeed = 0x243f6a8885a308d3;  // of launches that are verified and measured

struct Fields {
  static Cast blank(Format any) { return {.x = any, .y = any}; }
  template <class C, class V>
  static void visit(C& cast, V&& visit) {
    auto& [x, y, rows, cols, encoder, rounding] = cast;
    visit(required("x", "what is cast, [rows, cols]"), x);
    visit(required("y", "what it becomes; one of the two is f32, f16 or bf16"), y);
    visit(required("rows", "rows", Role::rows), rows);
    visit(required("cols", "columns", Role::size), cols);
    visit(optional("encoder", "the rule by which y is encoded, of those it has; the first by default"), encoder,
          y.info().encoders);
    visit(optional("rounding", "to the neighbouring codes, by chance as near as each is"), rounding, kRoundings);
  }
};

class CastOperation final : public OperationOf<Cast, Fields> {
 public:
  std::string_view title() const override { return "a matrix from one format to another, bit for bit"; }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&blocks(), &rows(), &reference()};
    return list;
  }
  std::span<const Family* const> cpu_families() const override { return cpu::cast_families(); }

 protected:
  void check(const Cast& c) const override {
    check_extent("rows", c.rows);
    check_some("cols", c.cols, "rows");
    check_matrix("x", c.x, c.rows, c.cols, "cols");
    check_matrix("y", c.y, c.rows, c.cols, "cols");
    check_rows_stand_alone("y", c.y);
    if (!is_float(c.x) && !is_float(c.y))
      throw unsupported(
          "y", c.y,
          fmt::format("must be f32, f16 or bf16: one side of a cast must be one of these, and x is {}", c.x.name()));
    const auto encoders = c.y.info().encoders;
    if (c.encoder < 0 || c.encoder >= static_cast<int>(encoders.size()))
      throw must_be("encoder", c.encoder, fmt::format("an encoder of {}: {}", c.y.name(), fmt::join(encoders, " ")));
    if (c.rounding == Rounding::stochastic && !rounds_stochastically(c.y))
      throw unsupported("y", c.y,
                        "is not supported with rounding=stochastic; use fp8, int8, int4 or fp4 without zero points");
  }
  Extents extents_of(const Cast& c) const override { return {c.rows, c.cols}; }
  void set_rows(Cast& c, std::int64_t rows) const override { c.rows = rows; }
  double bytes_of(const Cast& c) const override {
    return static_cast<double>(c.x.total_bytes(c.rows, c.cols)) + static_cast<double>(c.y.total_bytes(c.rows, c.cols));
  }
  double ops_of(const Cast&) const override { return 0; }

  Contract contract_of(const Cast& cast) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(CastArgs);
    c.rows_at = offsetof(CastArgs, rows);
    c.rows_name = "rows";
    c.cols = cast.cols;
    add_pointers(c.pointers, {"x.data", "x.scales", "x.global"}, offsetof(CastArgs, x), cast.x);
    add_pointers(c.pointers, {"y.data", "y.scales", "y.global"}, offsetof(CastArgs, y), cast.y);
    c.integers = {{"seed", offsetof(CastArgs, seed)}};
    const tw::cast::Shape shape{cast.cols, cast.encoder, 0};
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const Cast& c, Task& task) const override {
    task.weights = 0;
    add_matrix(task, "x", {c.x, c.rows, c.cols, 1.0f, false}, true, false);
    add_matrix(task, "y", {c.y, c.rows, c.cols, 1.0f, false}, true, true);
    task.arguments = arguments_by(contract_of(c), {{.integer = kTaskSeed}});
    task.verify_rows = verify_rows_of(c.rows, static_cast<double>(c.cols));
    task.compare = [outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                                 std::span<const std::vector<std::byte>>, std::int64_t rows) {
      return compare_bytes(outputs, got, oracle, rows);
    };
  }

  void compute(const Cast& c, const Task& task, HostBuffers buffers) const override {
    const std::vector<float> values = decoded(matrix(task, "x"), buffers);
    const MutableOperand y = operand(matrix(task, "y"), buffers);
    c.y.info().encode(values.data(), c.rows, c.cols, y, c.encoder);
    if (c.rounding == Rounding::stochastic)
      round_stochastically(c.y, values.data(), 0, c.rows, c.cols, y, c.encoder, kTaskSeed);
  }

  HostCheck judge(const Cast& c, const Task& task, HostBuffers buffers) const override {
    HostCheck check = check_bytes(task, buffers, c.rows, [&](HostBuffers again) { compute(c, task, again); });
    check.checked = check.outputs = c.rows * c.cols;
    const std::vector<float> from = decoded(matrix(task, "x"), buffers), to = decoded(matrix(task, "y"), buffers);
    for (std::size_t i = 0; i < from.size(); ++i)
      check.largest_error = std::max(check.largest_error, std::fabs(static_cast<double>(to[i]) - from[i]));
    return check;
  }
};

}  // namespace

void add_pointers(std::vector<PointerRule>& rules, const char* const (&names)[3], std::size_t at, Format format) {
  const FastPath& f = fast_path(format);
  const auto offset = [&](std::size_t member) { return static_cast<std::uint32_t>(at + member); };
  rules.push_back({names[0], offset(offsetof(Operand, data)), 16, true});
  if (f.row_bytes || f.scale_bytes)
    rules.push_back({names[1], offset(offsetof(Operand, scales)),
                     f.row_bytes ? static_cast<std::uint32_t>(f.row_bytes) : 16u, true});
  if (has_global(format)) rules.push_back({names[2], offset(offsetof(Operand, global)), 4, true});
}

const Operation& operation() {
  static const CastOperation operation;
  return operation;
}

}  // namespace tilewright::cast
