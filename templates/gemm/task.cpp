// SPDX-License-Identifier: Apache-2.0
// A gemm's buffers and arguments, and how its results are judged by what the reference kernel wrote.
#include <fmt/format.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "templates/describe.h"
#include "templates/fast_path.h"
#include "templates/gemm/gemm.h"
#include "templates/gemm/judge.h"
#include "templates/pack/matrix.h"

namespace tilewright::gemm {
namespace {

// Judges y against what the reference kernel wrote: rows * n values, then rows * n largest permitted errors.
std::string compare(Format y, std::int64_t n, std::span<const std::byte> got, std::span<const std::byte> oracle,
                    std::int64_t rows, double& worst) {
  const auto cells = static_cast<std::size_t>(rows * n);
  if (oracle.size() < 2 * cells * sizeof(float)) return "the reference wrote too little to judge by";
  const std::byte* values = oracle.data();
  const std::byte* bounds = values + cells * sizeof(float);
  std::vector<float> row(static_cast<std::size_t>(n)), value(row.size()), bound(row.size());
  const auto row_bytes = static_cast<std::size_t>(y.stream_bytes(0, 1, n));
  worst = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const Operand from{got.data() + static_cast<std::size_t>(r) * row_bytes, nullptr, nullptr};
    y.info().decode(from, 1, n, row.data());
    std::memcpy(value.data(), values + static_cast<std::size_t>(r * n) * sizeof(float), row.size() * sizeof(float));
    std::memcpy(bound.data(), bounds + static_cast<std::size_t>(r * n) * sizeof(float), row.size() * sizeof(float));
    for (std::size_t c = 0; c < row.size(); ++c) {
      const Judged judged = judge(y, row[c], value[c], bound[c]);
      if (!judged.right) return wrong_at(r, static_cast<std::int64_t>(c), row[c], value[c], bound[c]);
      worst = std::max(worst, judged.of_bound);
    }
  }
  return {};
}

}  // namespace

void describe(const Gemm& g, Task& task) {
  const bool inverse = g.global == Global::div;
  // Results near one: neither f16 overflow nor a sum below the output's resolution; of what has no scale, as many of
  // its codes as that allows.
  const Format from = g.x_stored();
  const Matrix x = add_matrix(task, "x", {from, g.m, g.k, least_deviation(from, 1.0f), inverse}, true, false);
  const float deviation = least_deviation(g.w, 1.0f / std::sqrt(static_cast<float>(g.k)));
  task.weights = static_cast<int>(task.matrices.size());
  const Matrix w = g.packing == Packing::none ? add_matrix(task, "w", {g.w, g.n, g.k, deviation, inverse}, false, false)
                                              : pack::add_packed(task, "w", g, deviation, false);
  int bias = -1, c = -1, workspace = -1;
  if (g.bias)
    bias = add_matrix(task, "bias", {*g.bias, 1, g.n, least_deviation(*g.bias, 1.0f), false}, false, false).data;
  if (g.c) c = add_matrix(task, "c", {*g.c, g.m, g.n, 1.0f, false}, true, false).data;
  const int y = add_matrix(task, "y", {g.y, g.m, g.n, 1.0f, false}, true, true).data;
  if (g.workspace) {
    workspace = static_cast<int>(task.buffers.size());
    task.buffers.push_back(
        {.name = "workspace", .bytes = static_cast<std::size_t>(g.workspace), .fill = {}, .scratch = true});
  }
  task.arguments = [=](std::span<void* const> pointers, std::int64_t rows) {
    const auto at = [&](int slot) { return slot < 0 ? nullptr : pointers[static_cast<std::size_t>(slot)]; };
    GemmArgs args;
    args.x = operand(x, pointers);
    args.w = operand(w, pointers);
    args.y = at(y);
    args.bias = at(bias);
    args.m = rows;
    args.c = at(c);
    args.workspace = at(workspace);
    return bytes_of(args);
  };
  task.verify_rows = verify_rows_of(g.m, static_cast<double>(g.n) * static_cast<double>(g.k));
  const auto element = static_cast<std::size_t>(g.y.stream_bytes(0, 1, 1));
  task.oracle_scale = (2 * sizeof(float) + element - 1) / element;
  const auto worst = std::make_shared<double>(0);
  task.compare = [y = g.y, n = g.n, worst](std::span<const std::byte> got, std::span<const std::byte> oracle,
                                           std::span<const std::vector<std::byte>>,
                                           std::int64_t rows) { return compare(y, n, got, oracle, rows, *worst); };
  task.worst_error = [worst] { return *worst; };
}

}  // namespace tilewright::gemm
