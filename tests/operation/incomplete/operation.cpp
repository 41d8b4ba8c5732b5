// SPDX-License-Identifier: Apache-2.0
// An operation with every function that OperationOf asks for, none of which does anything. It compiles; with
// -DLEAVE_OUT_title it lacks title() and does not, and so on for each (tests.cmake). LEAVE_OUT_factor forgets a field.
#include "operation/row_scale/row_scale.h"
#include "templates/common/operation_of.h"

namespace tilewright::incomplete {
namespace {

struct Fields {
  static RowScale blank(Format any) { return {.x = any, .y = any}; }
  template <class P, class V>
  static void visit(P& problem, V&& visit) {
#ifdef LEAVE_OUT_factor
    auto& [x, y, rows, cols] = problem;
#else
    auto& [x, y, rows, cols, factor] = problem;
    visit(optional("factor", ""), factor);
#endif
    visit(required("x", ""), x);
    visit(required("y", ""), y);
    visit(required("rows", "", Role::rows), rows);
    visit(required("cols", "", Role::size), cols);
  }
};

class Incomplete final : public OperationOf<RowScale, Fields> {
 public:
#ifndef LEAVE_OUT_title
  std::string_view title() const override { return {}; }
#endif
#ifndef LEAVE_OUT_families
  std::span<const Family* const> families() const override { return {}; }
#endif

 protected:
#ifndef LEAVE_OUT_check
  void check(const RowScale&) const override {}
#endif
#ifndef LEAVE_OUT_extents_of
  Extents extents_of(const RowScale&) const override { return {}; }
#endif
#ifndef LEAVE_OUT_set_rows
  void set_rows(RowScale&, std::int64_t) const override {}
#endif
#ifndef LEAVE_OUT_bytes_of
  double bytes_of(const RowScale&) const override { return 0; }
#endif
#ifndef LEAVE_OUT_ops_of
  double ops_of(const RowScale&) const override { return 0; }
#endif
#ifndef LEAVE_OUT_contract_of
  Contract contract_of(const RowScale&) const override { return {}; }
#endif
#ifndef LEAVE_OUT_describe_task
  void describe_task(const RowScale&, Task&) const override {}
#endif
#ifndef LEAVE_OUT_compute
  void compute(const RowScale&, const Task&, HostBuffers) const override {}
#endif
#ifndef LEAVE_OUT_judge
  HostCheck judge(const RowScale&, const Task&, HostBuffers) const override { return {}; }
#endif
};

}  // namespace

const Operation& operation() {
  static const Incomplete operation;
  return operation;
}

}  // namespace tilewright::incomplete
