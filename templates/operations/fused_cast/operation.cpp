// SPDX-License-Identifier: Apache-2.0
// The operation fused_cast. Its results are judged by the host, in double precision.
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <memory>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/operation_of.h"
#include "templates/operations/cast/cast.h"
#include "templates/operations/fused_cast/cpu/fused_cast.h"
#include "templates/operations/fused_cast/fused_cast.h"
#include "templates/operations/fused_cast/params.cuh"
#include "templates/operations/gemm/gemm.h"

namespace tilewright::fused_cast {
namespace {

static_assert(sizeof(FusedCastArgs) == sizeof(tw::fused_cast::Args) &&
              offsetof(FusedCastArgs, y) == offsetof(tw::fused_cast::Args, y) &&
              offsetof(FusedCastArgs, bias) == offsetof(tw::fused_cast::Args, bias) &&
              offsetof(FusedCastArgs, weight) == offsetof(tw::fused_cast::Args, weight) &&
              offsetof(FusedCastArgs, residual) == offsetof(tw::fused_cast::Args, residual) &&
              offsetof(FusedCastArgs, residual_out) == offsetof(tw::fused_cast::Args, residual_out) &&
              offsetof(FusedCastArgs, rows) == offsetof(tw::fused_cast::Args, rows));

constexpr float kDeviation = 8;  // of y: products of two numbers of the input

constexpr const char* kResiduals[] = {"none", "add"};
constexpr const char* kNorms[] = {"none", "rms"};
constexpr const char* kGates[] = {"none", "first"};

struct Fields {
  static FusedCast blank(Format any) { return {.x = any, .y = any}; }
  template <class C, class V>
  static void visit(C& cast, V&& visit) {
    auto& [x, y, rows, cols, bias, residual, norm, weight, eps, act, gate, encoder] = cast;
    visit(required("x", "input, [rows, cols], with a gate [rows, 2 cols]: f32 f16 bf16"), x);
    visit(required("y", "result, [rows, cols]: any format whose rows stand alone"), y);
    visit(required("rows", "rows", Role::rows), rows);
    visit(required("cols", "columns of y", Role::size), cols);
    visit(optional("bias", "added to each row, [cols]: f32 f16 bf16"), bias);
    visit(optional("residual", "a matrix of x's format is added, and the sum written"), residual, kResiduals);
    visit(optional("norm", "rows are divided by their root mean square"), norm, kNorms);
    visit(optional("weight", "factors of a normalized row, [cols]: f32 f16 bf16"), weight);
    visit(optional("eps", "added to the mean square; 1e-06 by default"), eps);
    visit(optional("act", "activation, of the gate if there is one"), act, gemm::kActivations);
    visit(optional("gate", "x has the columns of a gate first, then those that it multiplies"), gate, kGates);
    visit(optional("encoder", "the rule by which y is encoded, of those it has; the first by default"), encoder,
          y.info().encoders);
  }
};

void check_vector(const char* field, const std::optional<Format>& format) {
  if (format) check_float(field, *format);
}

class FusedCastOperation final : public OperationOf<FusedCast, Fields> {
 public:
  std::string_view title() const override {
    return "bias, residual, RMSNorm, activation or gate, and then a cast, in one pass";
  }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&rows(), &reference()};
    return list;
  }
  std::span<const Family* const> cpu_families() const override { return cpu::fused_cast_families(); }
  std::optional<Candidate> oracle(const Problem&, const Arch&) const override { return {}; }

 protected:
  void check(const FusedCast& c) const override {
    check_extent("rows", c.rows);
    check_some("cols", c.cols, "rows");
    check_float("x", c.x);
    check_matrix("x", c.x, c.rows, x_cols(c), "cols");
    check_matrix("y", c.y, c.rows, c.cols, "cols");
    check_rows_stand_alone("y", c.y);
    check_vector("bias", c.bias);
    check_vector("weight", c.weight);
    if (c.gate != Gate::none) {
      if (c.bias) throw unsupported("bias", *c.bias, "is not supported with a gate; leave it out");
      if (c.residual != Residual::none) throw invalid("residual", "add", "is not supported with a gate; leave it out");
      if (c.norm != Norm::none) throw invalid("norm", "rms", "is not supported with a gate; leave it out");
    }
    if (c.weight && c.norm == Norm::none)
      throw unsupported("weight", *c.weight, "is not supported without norm; leave it out");
    const double least = c.norm == Norm::none ? FusedCast{.x = c.x, .y = c.y}.eps : 1e-30,
                 most = c.norm == Norm::none ? least : 1e30;
    if (!(c.eps >= least && c.eps <= most))
      throw invalid("eps", fmt::format("{}", c.eps),
                    c.norm == Norm::none ? "must be left out: the problem has no norm" : "must be 1e-30 to 1e+30");
    const auto encoders = c.y.info().encoders;
    if (c.encoder < 0 || c.encoder >= static_cast<int>(encoders.size()))
      throw must_be("encoder", c.encoder, fmt::format("an encoder of {}: {}", c.y.name(), fmt::join(encoders, " ")));
  }
  Extents extents_of(const FusedCast& c) const override { return {c.rows, c.cols}; }
  void set_rows(FusedCast& c, std::int64_t rows) const override { c.rows = rows; }
  double bytes_of(const FusedCast& c) const override {
    const auto bytes = [](Format f, std::int64_t rows, std::int64_t cols) {
      return static_cast<double>(f.total_bytes(rows, cols));
    };
    double sum = bytes(c.x, c.rows, x_cols(c)) + bytes(c.y, c.rows, c.cols);
    if (c.bias) sum += bytes(*c.bias, 1, c.cols);
    if (c.weight) sum += bytes(*c.weight, 1, c.cols);
    if (c.residual != Residual::none) sum += 2 * bytes(c.x, c.rows, c.cols);
    return sum;
  }
  double ops_of(const FusedCast&) const override { return 0; }

  Contract contract_of(const FusedCast& cast) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(FusedCastArgs);
    c.rows_at = offsetof(FusedCastArgs, rows);
    c.rows_name = "rows";
    c.cols = cast.cols;
    c.pointers.push_back({"x", offsetof(FusedCastArgs, x), 16, true});
    cast::add_pointers(c.pointers, {"y.data", "y.scales", "y.global"}, offsetof(FusedCastArgs, y), cast.y);
    if (cast.bias) c.pointers.push_back({"bias", offsetof(FusedCastArgs, bias), 16, true});
    if (cast.weight) c.pointers.push_back({"weight", offsetof(FusedCastArgs, weight), 16, true});
    if (cast.residual != Residual::none) {
      c.pointers.push_back({"residual", offsetof(FusedCastArgs, residual), 16, true});
      c.pointers.push_back({"residual_out", offsetof(FusedCastArgs, residual_out), 16, true});
    }
    const tw::fused_cast::Shape shape{cast.cols, cast.encoder, static_cast<float>(cast.eps)};
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const FusedCast& c, Task& task) const override {
    task.weights = 0;
    const Places at = {
        add_matrix(task, "x", {c.x, c.rows, x_cols(c)}, true, false),
        add_matrix(task, "y", {c.y, c.rows, c.cols, kDeviation}, true, true),
        c.bias ? add_matrix(task, "bias", {*c.bias, 1, c.cols}, false, false).data : -1,
        c.weight ? add_matrix(task, "weight", {*c.weight, 1, c.cols}, false, false).data : -1,
        c.residual == Residual::none ? -1 : add_matrix(task, "residual", {c.x, c.rows, c.cols}, true, false).data,
        c.residual == Residual::none ? -1 : add_matrix(task, "residual_out", {c.x, c.rows, c.cols}, true, true).data};
    // The host computes an element a thousand times as slowly as an oracle on the device multiplies and adds.
    task.verify_rows = verify_rows_of(c.rows, 1000 * static_cast<double>(c.cols));
    std::vector<std::size_t> output_bytes;  // of a row; 0: an input
    for (const Buffer& b : task.buffers) output_bytes.push_back(b.output ? b.row_bytes : 0);
    const auto worst = std::make_shared<double>(0);
    task.compare = [=](std::span<const std::byte> got, std::span<const std::byte>,
                       std::span<const std::vector<std::byte>> inputs, std::int64_t rows) {
      std::vector<void*> pointers;
      for (const std::size_t row_bytes : output_bytes) {
        const std::span<const std::byte> bytes = row_bytes ? got : std::span<const std::byte>(inputs.front());
        pointers.push_back(const_cast<std::byte*>(bytes.data()));  // only read
        if (row_bytes)
          got = got.subspan(row_bytes * static_cast<std::size_t>(rows));
        else
          inputs = inputs.subspan(1);
      }
      const HostCheck check = fused_cast::judge(c, host_args(at, pointers, rows));
      *worst = *check.of_bound;
      return check.wrong;
    };
    task.worst_error = [worst] { return *worst; };
  }

  void compute(const FusedCast& c, const Task& task, HostBuffers buffers) const override {
    const HostArgs args = host_args(places(task), pointers_of(buffers), c.rows);
    const Exact e = exact(c, args);
    const std::vector<float> values(e.values.begin(), e.values.end());
    c.y.info().encode(values.data(), c.rows, c.cols, operand(matrix(task, "y"), buffers), c.encoder);
    if (!e.residual.empty())
      std::memcpy(operand(matrix(task, "residual_out"), buffers).data, e.residual.data(), e.residual.size());
  }
  HostCheck judge(const FusedCast& c, const Task& task, HostBuffers buffers) const override {
    return fused_cast::judge(c, host_args(places(task), pointers_of(buffers), c.rows));
  }

 private:
  struct Places {
    Matrix x, y;
    int bias, weight, residual, residual_out;  // buffers; -1: none
  };
  static std::int64_t x_cols(const FusedCast& c) { return c.gate == Gate::none ? c.cols : 2 * c.cols; }
  static Places places(const Task& task) {
    const auto data = [&](std::string_view name) {
      for (const Matrix& m : task.matrices)
        if (m.name == name) return m.data;
      return -1;
    };
    return {matrix(task, "x"), matrix(task, "y"), data("bias"), data("weight"), data("residual"), data("residual_out")};
  }
  static std::vector<void*> pointers_of(HostBuffers buffers) {
    std::vector<void*> pointers;
    for (const std::span<std::byte> b : buffers) pointers.push_back(b.data());
    return pointers;
  }
  static HostArgs host_args(const Places& at, const std::vector<void*>& pointers, std::int64_t rows) {
    const auto vector = [&](int i) {
      return Operand{i < 0 ? nullptr : pointers[static_cast<std::size_t>(i)], nullptr, nullptr};
    };
    return {operand(at.x, pointers),
            operand(at.y, pointers),
            vector(at.bias),
            vector(at.weight),
            vector(at.residual),
            vector(at.residual_out),
            rows};
  }
};

}  // namespace

const Operation& operation() {
  static const FusedCastOperation operation;
  return operation;
}

}  // namespace tilewright::fused_cast
