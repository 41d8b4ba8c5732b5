// SPDX-License-Identifier: Apache-2.0
// A gemm's buffers and arguments, and how its results are judged by what the reference kernel wrote.
#include <fmt/format.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "templates/common/describe.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/gemm.h"
#include "templates/operations/gemm/groups.h"
#include "templates/operations/gemm/judge.h"
#include "templates/operations/gemm/matrix.h"

namespace tilewright::gemm {

Matrix add_weights(Task& task, const Gemm& g) {
  const float deviation = least_deviation(g.w, 1.0f / std::sqrt(static_cast<float>(g.k)));
  if (g.packing != Packing::none) return add_packed(task, "w", g, deviation, false);
  return add_matrix(task, "w", {g.w, g.n, g.k, deviation, g.global == Global::div}, false, false);
}

void describe(const Gemm& g, Task& task) {
  const bool inverse = g.global == Global::div;
  // Results near one: neither f16 overflow nor a sum below the output's resolution; of what has no scale, as many of
  // its codes as that allows.
  const Format from = g.x_stored();
  const std::int64_t x_rows = g.x_rows(), matrices = std::max(g.groups, 1);
  add_matrix(task, "x", {from, x_rows, g.k, least_deviation(from, 1.0f), inverse}, true, false);
  if (!g.groups) task.weights = static_cast<int>(task.matrices.size());  // a tensor is one matrix
  const std::size_t before_w = task.buffers.size();
  add_weights(task, one_group(g));
  if (g.groups) stack(std::span(task.buffers).subspan(before_w), g.groups);
  int group_rows = -1;
  if (g.bias) add_matrix(task, "bias", {*g.bias, matrices, g.n, least_deviation(*g.bias, 1.0f), false}, false, false);
  if (g.c) add_matrix(task, "c", {*g.c, g.m, g.n, 1.0f, false}, true, false);
  add_matrix(task, "y", {g.y, x_rows, g.n, 1.0f, false}, true, true);
  if (g.groups) {
    for (Buffer& b : task.buffers) b.row_bytes *= static_cast<std::size_t>(g.groups);  // of a row of each
    group_rows = static_cast<int>(task.buffers.size());
    task.buffers.push_back(group_rows_buffer(g));
  }
  if (g.workspace)
    task.buffers.push_back(
        {.name = "workspace", .bytes = static_cast<std::size_t>(g.workspace), .fill = {}, .scratch = true});
  // Each step of rows has its own table.
  if (group_rows >= 0)
    task.arguments = [=, plain = arguments_by(contract(g))](std::span<void* const> pointers, std::int64_t rows) {
      std::vector<void*> of_launch(pointers.begin(), pointers.end());
      void*& table = of_launch[static_cast<std::size_t>(group_rows)];
      table = static_cast<std::int32_t*>(table) + group_rows_at(g, rows);
      return plain(of_launch, rows);
    };
  task.verify_rows =
      verify_rows_of(g.m, static_cast<double>(g.n) * static_cast<double>(g.k) * static_cast<double>(matrices));
  const auto element = static_cast<std::size_t>(g.y.stream_bytes(0, 1, 1));
  task.oracle_scale = (2 * sizeof(float) + element - 1) / element;
  const auto worst = std::make_shared<double>(0);
  task.compare = [=](std::span<const std::byte> got, std::span<const std::byte> oracle,
                     std::span<const std::vector<std::byte>> inputs, std::int64_t rows) {
    if (!g.groups) return compare(g.y, g.n, got, oracle, rows, {}, *worst);
    // y is the only output, and before the offsets.
    const std::vector<int> owners = owners_of_rows(g, rows, inputs[static_cast<std::size_t>(group_rows) - 1]);
    return compare(g.y, g.n, got, oracle, static_cast<std::int64_t>(owners.size()), owners, *worst);
  };
  task.worst_error = [worst] { return *worst; };
}

}  // namespace tilewright::gemm
