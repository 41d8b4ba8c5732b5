// SPDX-License-Identifier: Apache-2.0
// A conv's launch contract, buffers and arguments, and how its results are judged by what the reference kernel wrote.
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <memory>

#include "templates/common/describe.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"
#include "templates/operations/gemm/gemm.h"
#include "templates/operations/gemm/judge.h"

namespace tilewright::conv {
namespace {

// The public struct and the device's are one layout.
static_assert(sizeof(ConvArgs) == sizeof(tw::conv::Args) && offsetof(ConvArgs, w) == offsetof(tw::conv::Args, w) &&
              offsetof(ConvArgs, y) == offsetof(tw::conv::Args, y) &&
              offsetof(ConvArgs, bias) == offsetof(tw::conv::Args, bias) &&
              offsetof(ConvArgs, residual) == offsetof(tw::conv::Args, residual) &&
              offsetof(ConvArgs, cache) == offsetof(tw::conv::Args, cache) &&
              offsetof(ConvArgs, workspace) == offsetof(tw::conv::Args, workspace) &&
              offsetof(ConvArgs, alpha) == offsetof(tw::conv::Args, alpha) &&
              offsetof(ConvArgs, beta) == offsetof(tw::conv::Args, beta) &&
              offsetof(ConvArgs, amax) == offsetof(tw::conv::Args, amax));

// Of a tensor like y the first pixels, channels innermost: what a launch of a part of the blocks has computed.
std::vector<std::byte> first_pixels(const tw::conv::Shape& shape, std::span<const std::byte> y, std::size_t element,
                                    std::int64_t pixels) {
  std::vector<std::byte> rows;
  rows.reserve(static_cast<std::size_t>(pixels * shape.k) * element);
  for (std::int64_t p = 0; p < pixels; ++p)
    for (std::int64_t c = 0; c < shape.k; ++c) {
      const std::int64_t at = tw::conv::element_at(shape.y_channels_first, p / shape.pixels(), c, shape.k,
                                                   p % shape.pixels(), shape.pixels());
      const auto from = y.subspan(static_cast<std::size_t>(at) * element, element);
      rows.insert(rows.end(), from.begin(), from.end());
    }
  return rows;
}

}  // namespace

Contract contract(const Conv& conv) {
  const Gemm g = as_gemm(conv);
  Contract c;
  c.op = ConvArgs::kOperation;
  c.args_bytes = sizeof(ConvArgs);
  c.rows_name = std::string("pixels");  // GCC 12 warns of a character array here
  c.rows = g.m, c.cols = g.n;
  gemm::add_operand(c, {"x.data", "x.scales", "x.global"}, offsetof(ConvArgs, x), conv.x);
  gemm::add_weights(c, g, offsetof(ConvArgs, w));
  if (conv.bias)
    c.pointers.push_back(
        {"bias", offsetof(ConvArgs, bias), static_cast<std::uint32_t>(fast_path(*conv.bias).element_bytes), true});
  if (conv.residual) c.pointers.push_back({"residual", offsetof(ConvArgs, residual), 16, true});
  if (conv.cache) c.pointers.push_back({"cache", offsetof(ConvArgs, cache), 16, true});
  if (conv.quant_act.block) c.pointers.push_back({"amax", offsetof(ConvArgs, amax), alignof(float), true});
  c.pointers.push_back({"y", offsetof(ConvArgs, y), 16, true});
  if (conv.workspace) c.pointers.push_back({"workspace", offsetof(ConvArgs, workspace), 16, true});
  c.factors.push_back({"alpha", offsetof(ConvArgs, alpha), nullptr});
  c.factors.push_back({"beta", offsetof(ConvArgs, beta), conv.residual ? nullptr : "the problem has no residual"});
  const tw::conv::Shape shape = shape_of(conv);
  c.constants.resize(sizeof(shape));
  std::memcpy(c.constants.data(), &shape, sizeof(shape));
  return c;
}

void describe(const Conv& conv, Task& task) {
  const Gemm g = as_gemm(conv);
  const tw::conv::Shape shape = shape_of(conv);
  const bool inverse = conv.global == Global::div;
  std::int64_t plane = 1;  // elements behind one of the outermost axis
  for (int i = shape.first_axis + 1; i < kMostAxes; ++i) plane *= shape.axes[i].in;
  // Elements are alike, so tensors are matrices of as many rows, whatever their layout.
  const Content input{conv.x, conv.n * (shape.axes[shape.first_axis].in - conv.cache) * plane, conv.c,
                      least_deviation(conv.x, 1.0f), inverse};
  const Matrix x = add_matrix(task, "x", input, false, false);
  task.weights = static_cast<int>(task.matrices.size());
  gemm::add_weights(task, g);
  if (conv.bias) add_matrix(task, "bias", {*conv.bias, 1, g.n, least_deviation(*conv.bias, 1.0f), false}, false, false);
  if (conv.residual) add_matrix(task, "residual", {*conv.residual, g.m, g.n, 1.0f, false}, false, false);
  if (conv.cache) {
    Content before = input;
    before.rows = conv.n * conv.cache * plane;
    add_matrix(task, "cache", before, false, false);
    if (x.global >= 0) task.buffers.pop_back(), task.matrices.back().global = x.global;  // its scale of the tensor
  }
  if (conv.quant_act.block) fp4_fake_quant::add_amax(task);
  add_matrix(task, "y", {conv.y, g.m, g.n, 1.0f, false}, false, true);
  if (conv.workspace)
    task.buffers.push_back(
        {.name = "workspace", .bytes = static_cast<std::size_t>(conv.workspace), .fill = {}, .scratch = true});
  for (Matrix& m : task.matrices) m.any_axes = true;
  task.verify_rows = g.m;
  const auto element = static_cast<std::size_t>(conv.y.stream_bytes(0, 1, 1));
  task.oracle_scale = (2 * sizeof(float) + element - 1) / element;
  const auto worst = std::make_shared<double>(0);
  task.compare = [=, format = conv.y](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                      std::span<const std::vector<std::byte>>, std::int64_t rows) {
    if (rows == g.m) return gemm::compare(format, g.n, got, oracle, rows, {}, *worst);
    const std::vector<std::byte> of_got = first_pixels(shape, got, element, rows);
    std::vector<std::byte> of_oracle = first_pixels(shape, oracle, sizeof(float), rows);
    const std::vector<std::byte> bounds =
        first_pixels(shape, oracle.subspan(static_cast<std::size_t>(g.m * g.n) * sizeof(float)), sizeof(float), rows);
    of_oracle.insert(of_oracle.end(), bounds.begin(), bounds.end());
    return gemm::compare(format, g.n, of_got, of_oracle, rows, {}, *worst);
  };
  task.worst_error = [worst] { return *worst; };
}

}  // namespace tilewright::conv
