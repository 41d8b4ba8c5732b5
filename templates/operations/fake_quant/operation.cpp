// SPDX-License-Identifier: Apache-2.0
// The operation fake_quant. What it gives for each element is exact: a kernel gives the host's bytes. A scale's
// gradient is a sum, with a bound.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/exact_floats.h"
#include "templates/common/operation_of.h"
#include "templates/operations/fake_quant/fake_quant.h"
#include "templates/operations/fake_quant/params.cuh"

namespace tilewright::fake_quant {
namespace {

using tw::fake_quant::Codes;
using tw::fake_quant::Shape;

static_assert(sizeof(FakeQuantArgs) == sizeof(tw::fake_quant::Args) &&
              offsetof(FakeQuantArgs, dy) == offsetof(tw::fake_quant::Args, dy) &&
              offsetof(FakeQuantArgs, y) == offsetof(tw::fake_quant::Args, y) &&
              offsetof(FakeQuantArgs, scale) == offsetof(tw::fake_quant::Args, scale) &&
              offsetof(FakeQuantArgs, zero_point) == offsetof(tw::fake_quant::Args, zero_point) &&
              offsetof(FakeQuantArgs, dscale) == offsetof(tw::fake_quant::Args, dscale) &&
              offsetof(FakeQuantArgs, workspace) == offsetof(tw::fake_quant::Args, workspace) &&
              offsetof(FakeQuantArgs, rows) == offsetof(tw::fake_quant::Args, rows) &&
              offsetof(FakeQuantArgs, factor) == offsetof(tw::fake_quant::Args, factor));
static_assert(FakeQuant::kWorkspace >= 8 + 8 * 4096);

constexpr const char* kScopes[] = {"tensor", "row"};
constexpr const char* kGrads[] = {"none", "straight", "learned"};
// Roundings of a gradient's sum: of a term, of up to eight of them in single precision, of the result.
constexpr double kSumError = 10 * 0x1p-24;

struct Fields {
  static FakeQuant blank(Format any) { return {.x = any}; }
  template <class P, class V>
  static void visit(P& problem, V&& visit) {
    auto& [x, rows, cols, qmin, qmax, scope, grad] = problem;
    visit(required("x", "format of x, y and dy, [rows, cols]: f32 f16 bf16"), x);
    visit(required("rows", "rows", Role::rows), rows);
    visit(required("cols", "columns", Role::size), cols);
    visit(optional("qmin", "least code, -128 or more; -128 by default"), qmin);
    visit(optional("qmax", "largest code, 255 or less, at most qmin + 255; 127 by default"), qmax);
    visit(optional("scope", "what shares a scale and a zero point: the tensor by default"), scope, kScopes);
    visit(optional("grad", "y is the gradient of x instead, and a learned scale has one"), grad, kGrads);
  }
};

Shape shape_of(const FakeQuant& f) { return {f.cols, static_cast<tw::i32>(f.qmin), static_cast<tw::i32>(f.qmax)}; }

std::span<std::byte> find(const Task& task, std::span<const std::span<std::byte>> buffers, std::string_view name) {
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (std::string_view(task.buffers[i].name).substr(0, task.buffers[i].name.find('.')) == name) return buffers[i];
  return {};
}
template <class T>
T word(std::span<const std::byte> bytes, std::int64_t index) {
  T v{};
  std::memcpy(&v, &bytes[static_cast<std::size_t>(index) * sizeof v], sizeof v);
  return v;
}

// Scales and zero points of a host's computation. Throws Error (invalid_argument) for one that codes cannot have.
std::vector<Codes> checked_codes(const FakeQuant& f, std::span<const std::byte> scale,
                                 std::span<const std::byte> zero_point, std::int64_t count) {
  std::vector<Codes> codes;
  for (std::int64_t i = 0; i < count; ++i) {
    const float by = word<float>(scale, i);
    const auto zero = word<std::int32_t>(zero_point, i);
    if (!(by > 0 && std::isfinite(by)))
      throw must_be(fmt::format("scale[{}]", i), fmt::format("{}", by), "a positive finite number");
    if (zero < f.qmin || zero > f.qmax)
      throw must_be(fmt::format("zero_point[{}]", i), zero, fmt::format("{} to {}, qmin to qmax", f.qmin, f.qmax));
    codes.emplace_back(by, zero, shape_of(f));
  }
  return codes;
}

class FakeQuantOperation final : public OperationOf<FakeQuant, Fields> {
 public:
  std::string_view title() const override {
    return "what integers under a given scale leave of a tensor, as floats, and the gradients of that";
  }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&vectors(), &reference()};
    return list;
  }

 protected:
  void check(const FakeQuant& f) const override {
    check_extent("rows", f.rows);
    check_some("cols", f.cols, "rows");
    check_float("x", f.x);
    check_matrix("x", f.x, f.rows, f.cols, "cols");
    if (f.qmin < -128 || f.qmin > 254) throw must_be("qmin", f.qmin, "-128 to 254");
    const std::int64_t most = std::min<std::int64_t>(255, f.qmin + 255);
    if (f.qmax <= f.qmin || f.qmax > most)
      throw must_be("qmax", f.qmax, fmt::format("{} to {} with qmin={}", f.qmin + 1, most, f.qmin));
  }
  Extents extents_of(const FakeQuant& f) const override { return {f.rows, f.cols}; }
  void set_rows(FakeQuant& f, std::int64_t rows) const override { f.rows = rows; }
  double bytes_of(const FakeQuant& f) const override {
    const int tensors = f.grad == FakeQuantGrad::none ? 2 : 3;
    const double scales = by_row(f) ? static_cast<double>(f.rows) : 1;
    return tensors * static_cast<double>(f.x.total_bytes(f.rows, f.cols)) + scales * (learned(f) ? 12 : 8);
  }
  double ops_of(const FakeQuant&) const override { return 0; }

  Contract contract_of(const FakeQuant& f) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(FakeQuantArgs);
    c.rows_at = offsetof(FakeQuantArgs, rows);
    c.rows_name = "rows";
    c.cols = f.cols;
    c.pointers = {{"x", offsetof(FakeQuantArgs, x), 16, true}};
    if (f.grad != FakeQuantGrad::none) c.pointers.push_back({"dy", offsetof(FakeQuantArgs, dy), 16, true});
    c.pointers.push_back({"y", offsetof(FakeQuantArgs, y), 16, true});
    c.pointers.push_back({"scale", offsetof(FakeQuantArgs, scale), alignof(float), true});
    c.pointers.push_back({"zero_point", offsetof(FakeQuantArgs, zero_point), alignof(std::int32_t), false});
    if (learned(f)) c.pointers.push_back({"dscale", offsetof(FakeQuantArgs, dscale), alignof(float), true});
    if (learned(f) && !by_row(f)) c.pointers.push_back({"workspace", offsetof(FakeQuantArgs, workspace), 8, true});
    if (learned(f)) c.factors.push_back({"factor", offsetof(FakeQuantArgs, factor), nullptr});
    const Shape shape = shape_of(f);
    c.constants.resize(sizeof shape);
    std::memcpy(c.constants.data(), &shape, sizeof shape);
    return c;
  }

  void describe_task(const FakeQuant& f, Task& task) const override {
    task.weights = 0;
    add_matrix(task, "x", {f.x, f.rows, f.cols}, true, false);
    if (f.grad != FakeQuantGrad::none) add_matrix(task, "dy", {f.x, f.rows, f.cols}, true, false);
    add_matrix(task, "y", {f.x, f.rows, f.cols}, true, true);
    const std::int64_t scales = by_row(f) ? f.rows : 1;
    const auto words = [&](const char* name, const char* element, bool output, auto value) {
      task.buffers.push_back({.name = name,
                              .bytes = static_cast<std::size_t>(scales) * 4,
                              .output = output,
                              .row_bytes = by_row(f) ? std::size_t{4} : 0});
      task.buffers.back().element = element;
      if (!output)
        task.buffers.back().fill = [value](std::span<std::byte> bytes, std::uint64_t seed) {
          for (std::size_t i = 0; i * 4 < bytes.size(); ++i) {
            const auto v = value(seed + i);
            static_assert(sizeof v == 4);
            std::memcpy(&bytes[i * 4], &v, sizeof v);
          }
        };
    };
    // Values are about N(0, 1), of which codes reach two deviations.
    const float step = 4.0f / static_cast<float>(f.qmax - f.qmin);
    words("scale", "f32", false, [step](std::uint64_t i) { return step * (0.75f + static_cast<float>(i % 5) / 8); });
    words("zero_point", "int32", false, [f](std::uint64_t i) {
      return static_cast<std::int32_t>(f.qmin + (f.qmax - f.qmin) / 2 + static_cast<std::int64_t>(i % 2));
    });
    if (learned(f)) words("dscale", "f32", true, [](std::uint64_t) { return 0.0f; });
    if (learned(f) && !by_row(f))
      task.buffers.push_back({.name = "workspace", .bytes = FakeQuant::kWorkspace, .scratch = true});
    if (learned(f)) task.arguments = arguments_by(contract_of(f), {{.number = task_factor(f)}});
    task.verify_rows = verify_rows_of(f.rows, static_cast<double>(f.cols));
    task.compare = [f, outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                                    std::span<const std::vector<std::byte>> inputs,
                                                    std::int64_t rows) -> std::string {
      std::string wrong = compare_bytes({outputs.front()}, got, oracle, rows);
      if (!wrong.empty() || !learned(f)) return wrong;
      FakeQuant part = f;
      part.rows = rows;
      const auto floats = [&](const std::vector<std::byte>& bytes) {
        std::vector<float> values(static_cast<std::size_t>(rows * f.cols));
        f.x.info().decode({bytes.data(), nullptr, nullptr}, rows, f.cols, values.data());
        return values;
      };
      const std::size_t at = outputs.front().second * static_cast<std::size_t>(rows);
      return judge_sums(part, task_factor(f), floats(inputs[0]), floats(inputs[1]), inputs[2], inputs[3],
                        got.subspan(at), nullptr);
    };
  }

  void compute(const FakeQuant& f, const Task& task, HostBuffers buffers) const override {
    const ExactFloats exact;
    const std::vector<float> x = decoded(matrix(task, "x"), buffers);
    const bool backward = f.grad != FakeQuantGrad::none;
    std::vector<float> y = backward ? decoded(matrix(task, "dy"), buffers) : x;
    const std::int64_t scales = by_row(f) ? f.rows : 1, each = by_row(f) ? f.cols : f.rows * f.cols;
    const std::vector<Codes> codes =
        checked_codes(f, find(task, buffers, "scale"), find(task, buffers, "zero_point"), scales);
    for (std::int64_t s = 0; s < scales; ++s) {
      double sum = 0;
      const Codes& by = codes[static_cast<std::size_t>(s)];
      for (auto i = static_cast<std::size_t>(s * each); i < static_cast<std::size_t>((s + 1) * each); ++i) {
        sum += static_cast<double>(y[i]) * by.slope(x[i]);
        y[i] = backward ? by.gradient(x[i], y[i]) : by.value(x[i]);
      }
      const auto dscale = static_cast<float>(sum * task_factor(f));
      if (learned(f)) std::memcpy(&find(task, buffers, "dscale")[static_cast<std::size_t>(s) * 4], &dscale, 4);
    }
    f.x.info().encode(y.data(), f.rows, f.cols, operand(matrix(task, "y"), buffers), 0);
  }

  HostCheck judge(const FakeQuant& f, const Task& task, HostBuffers buffers) const override {
    HostCheck check;
    const std::vector<float> x = decoded(matrix(task, "x"), buffers), y = decoded(matrix(task, "y"), buffers);
    const bool backward = f.grad != FakeQuantGrad::none;
    const std::vector<float> dy = backward ? decoded(matrix(task, "dy"), buffers) : x;
    const std::span<std::byte> scale = find(task, buffers, "scale"), zero_point = find(task, buffers, "zero_point");
    // By integers and doubles, which share no code with the kernels.
    for (std::int64_t i = 0; i < f.rows * f.cols; ++i) {
      const std::int64_t s = by_row(f) ? i / f.cols : 0;
      const auto at = static_cast<std::size_t>(i);
      const float by = word<float>(scale, s);
      const auto zero = word<std::int32_t>(zero_point, s);
      const double inverse = static_cast<float>(1.0 / static_cast<double>(by));
      const double code = std::nearbyint(static_cast<float>(x[at] * inverse)) + zero;
      const auto least = static_cast<double>(f.qmin), most = static_cast<double>(f.qmax);
      const double limited = code >= least ? std::min(code, most) : least;
      const bool inside = code >= least && code <= most;
      const std::vector<float> exact = {backward ? (inside ? dy[at] : dy[at] * 0.0f)
                                                 : static_cast<float>((limited - zero) * static_cast<double>(by))};
      const float wanted = through(f.x, 1, 1, exact).front();
      if (!(std::isnan(wanted) ? std::isnan(y[at]) : wanted == y[at]) && check.wrong.empty())
        check.wrong = fmt::format("y[{},{}] = {}, expected {}", i / f.cols, i % f.cols, y[at], wanted);
      check.infinite += !std::isfinite(wanted);
    }
    check.checked = check.outputs = f.rows * f.cols;
    if (!learned(f)) return check;
    double of_bound = 0;
    const std::string wrong =
        judge_sums(f, task_factor(f), x, dy, scale, zero_point, find(task, buffers, "dscale"), &of_bound);
    if (check.wrong.empty()) check.wrong = wrong;
    check.of_bound = of_bound;
    check.outputs = check.checked += by_row(f) ? f.rows : 1;
    return check;
  }

 private:
  // LSQ's, of the problem's own rows, whatever a task's launch has; a caller's launch gives its own.
  static float task_factor(const FakeQuant& f) {
    const double each =
        static_cast<double>(f.cols) * (by_row(f) ? 1.0 : static_cast<double>(std::max<std::int64_t>(f.rows, 1)));
    return static_cast<float>(1 / std::sqrt(each * static_cast<double>(std::max<std::int64_t>(f.qmax, 1))));
  }

  static std::string judge_sums(const FakeQuant& f, double factor, const std::vector<float>& x,
                                const std::vector<float>& dy, std::span<const std::byte> scale,
                                std::span<const std::byte> zero_point, std::span<const std::byte> got,
                                double* of_bound) {
    const std::int64_t scales = by_row(f) ? f.rows : 1, each = by_row(f) ? f.cols : f.rows * f.cols;
    for (std::int64_t s = 0; s < scales; ++s) {
      const Codes codes(word<float>(scale, s), word<std::int32_t>(zero_point, s), shape_of(f));
      double sum = 0, sizes = 0;
      for (auto i = static_cast<std::size_t>(s * each); i < static_cast<std::size_t>((s + 1) * each); ++i) {
        const double term = static_cast<double>(dy[i]) * static_cast<double>(codes.slope(x[i]));
        sum += term, sizes += std::fabs(term);
      }
      const float is = word<float>(got, s);
      const double wanted = sum * factor, bound = kSumError * sizes * factor + 0x1p-148;
      if (!std::isfinite(wanted) ? std::isfinite(is) : !(std::fabs(is - wanted) <= bound))
        return fmt::format("dscale[{}] = {}, expected {} +- {}", s, is, wanted, bound);
      if (of_bound && std::isfinite(wanted)) *of_bound = std::max(*of_bound, std::fabs(is - wanted) / bound);
    }
    return {};
  }
};

}  // namespace

const Operation& operation() {
  static const FakeQuantOperation operation;
  return operation;
}

}  // namespace tilewright::fake_quant
