// SPDX-License-Identifier: Apache-2.0
// The operation transpose and its families. It is exact: a kernel gives the host's bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/family_of.h"
#include "templates/common/operation_of.h"
#include "templates/common/run_grid.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/transpose/params.cuh"
#include "templates/operations/transpose/transpose.h"

namespace tilewright::transpose {
namespace {

static_assert(sizeof(TransposeArgs) == sizeof(tw::transpose::Args) &&
              offsetof(TransposeArgs, y) == offsetof(tw::transpose::Args, y));

int element_bytes(const Transpose& t) { return fast_path(t.x).element_bytes; }
double elements(const Transpose& t) { return static_cast<double>(t.rows) * static_cast<double>(t.cols); }

struct Fields {
  static Transpose blank(Format any) { return {.x = any}; }
  template <class P, class V>
  static void visit(P& problem, V&& visit) {
    auto& [x, rows, cols] = problem;
    visit(required("x", "what is transposed, [rows, cols]: f32 f16 bf16 int32 int8 e4m3 e5m2"), x);
    visit(required("rows", "rows of x, columns of the result", Role::size), rows);
    visit(required("cols", "columns of x, rows of the result", Role::size), cols);
  }
};

class Tiles final : public FamilyOf<Transpose> {
 public:
  Tiles() : FamilyOf("transpose") {}
  std::string_view name() const override { return "tiles"; }
  std::string_view title() const override { return "tiles of 128 bytes square, through registers and shared memory"; }

 protected:
  Text text(const Transpose& t, const Candidate& candidate, const Arch&) const override {
    const int bytes = element_bytes(t);
    const bool words = t.rows * bytes % 4 == 0 && t.cols * bytes % 4 == 0;
    return {.plan_type = fmt::format("tw::transpose::Tiles<{}, {}, {}>", bytes, candidate.at("warps"), words),
            .formats = {}};
  }
  void costs(const Transpose& p, const Candidate&, const Arch&, Traits& t) const override {
    const int bytes = element_bytes(p), side = tw::transpose::tile_side(bytes);
    t.bytes_in_flight = 128.0 * side / t.threads;
    t.registers = 24 + side / t.threads * 32;
    t.alu_ops = elements(p) * bytes;
  }
  std::vector<Candidate> list(const Transpose&) const override {
    std::vector<Candidate> all;
    for (const int warps : {8, 16, 4}) all.push_back({std::string(name()), {{"warps", warps}}});
    return all;
  }
  LaunchPlan plan(const Transpose& t, const Candidate& candidate, const Arch&) const override {
    const int bytes = element_bytes(t);
    const auto side = static_cast<std::uint32_t>(tw::transpose::tile_side(bytes));
    LaunchPlan plan;
    plan.x = {1, side, side};
    plan.threads = static_cast<std::uint32_t>(32 * candidate.at("warps"));
    plan.shared_bytes = static_cast<std::uint32_t>(tw::transpose::tile_bytes(bytes));
    return plan;
  }
};

class Reference final : public FamilyOf<Transpose> {
 public:
  Reference() : FamilyOf("transpose") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "an element for a thread"; }

 protected:
  Text text(const Transpose& t, const Candidate&, const Arch&) const override {
    return {
        .plan_type = fmt::format("tw::transpose::Reference<{}>", element_bytes(t)), .formats = {}, .header = "tiles"};
  }
  void costs(const Transpose& p, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 24;
    t.global_bytes = elements(p) * (element_bytes(p) + 32);  // a sector for each element that is written
    t.bytes_in_flight = 4;
    t.alu_ops = elements(p) * 60;
  }
  LaunchPlan plan(const Transpose& t, const Candidate&, const Arch&) const override {
    LaunchPlan plan;
    plan.threads = 128;
    plan.x = run_grid(static_cast<int>(plan.threads), t.rows, t.cols);
    return plan;
  }
};

class TransposeOperation final : public OperationOf<Transpose, Fields> {
 public:
  std::string_view title() const override { return "a matrix with its rows as columns, for weights stored as [k, n]"; }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&tiles(), &reference()};
    return list;
  }

 protected:
  void check(const Transpose& t) const override {
    check_some("rows", t.rows);
    check_some("cols", t.cols);
    if (!is_plain(t.x)) throw unsupported("x", t.x, "must be f32, f16, bf16, int32, int8, e4m3 or e5m2");
    check_matrix("x", t.x, t.rows, t.cols, "cols");
  }
  Extents extents_of(const Transpose& t) const override { return {t.rows, t.cols, true}; }
  void set_rows(Transpose&, std::int64_t) const override {}
  double bytes_of(const Transpose& t) const override { return 2.0 * elements(t) * element_bytes(t); }
  double ops_of(const Transpose&) const override { return 0; }

  Contract contract_of(const Transpose& t) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(TransposeArgs);
    c.rows_name = std::string("rows");
    c.rows = t.rows, c.cols = t.cols;
    c.pointers = {{"x", offsetof(TransposeArgs, x), 16, true}, {"y", offsetof(TransposeArgs, y), 16, true}};
    const tw::transpose::Shape shape{t.rows, t.cols};
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const Transpose& t, Task& task) const override {
    task.weights = 0;
    add_matrix(task, "x", {t.x, t.rows, t.cols}, false, false);
    add_matrix(task, "y", {t.x, t.cols, t.rows}, false, true);
    task.verify_rows = t.rows;
    task.compare = [outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                                 std::span<const std::vector<std::byte>>,
                                                 std::int64_t) { return compare_bytes(outputs, got, oracle, 1); };
  }

  void compute(const Transpose& t, const Task& task, HostBuffers buffers) const override {
    const auto bytes = static_cast<std::size_t>(element_bytes(t));
    const auto* from = static_cast<const std::byte*>(operand(matrix(task, "x"), buffers).data);
    auto* to = static_cast<std::byte*>(operand(matrix(task, "y"), buffers).data);
    for (std::int64_t r = 0; r < t.rows; ++r)
      for (std::int64_t c = 0; c < t.cols; ++c)
        std::memcpy(to + static_cast<std::size_t>(c * t.rows + r) * bytes,
                    from + static_cast<std::size_t>(r * t.cols + c) * bytes, bytes);
  }
  HostCheck judge(const Transpose& t, const Task& task, HostBuffers buffers) const override {
    HostCheck check = check_bytes(task, buffers, 1, [&](HostBuffers again) { compute(t, task, again); });
    check.checked = check.outputs = t.rows * t.cols;
    return check;
  }
};

}  // namespace

const Family& tiles() {
  static const Tiles family;
  return family;
}
const Family& reference() {
  static const Reference family;
  return family;
}
const Operation& operation() {
  static const TransposeOperation operation;
  return operation;
}

}  // namespace tilewright::transpose
