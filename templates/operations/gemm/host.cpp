// SPDX-License-Identifier: Apache-2.0
// A gemm on the host: plain single precision in the place of a kernel, and the fp64 oracle of `tilewright run`. Both
// decode operands by their formats' scalar codecs and know no kernel.
#include <tilewright/numerics.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/threads.h"
#include "templates/common/describe.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/gemm.h"
#include "templates/operations/gemm/groups.h"
#include "templates/operations/gemm/judge.h"

namespace tilewright::gemm {
namespace {

constexpr double kMostMacs = 2e9;  // of one check: a few seconds on two cores

// The outputs that are computed and checked: all, or an even spread with the first and last of both extents.
struct Sample {
  std::vector<std::int64_t> rows, cols;
  std::int64_t size() const { return static_cast<std::int64_t>(rows.size() * cols.size()); }
};

Sample choose_sample(std::int64_t m, std::int64_t n, std::int64_t k) {
  const double pairs = std::max(64.0, kMostMacs / static_cast<double>(k));
  if (static_cast<double>(m) * static_cast<double>(n) <= pairs) return {spread(m, m), spread(n, n)};
  Sample s;
  s.rows = spread(m, 16);
  s.cols = spread(n, static_cast<std::int64_t>(pairs / static_cast<double>(s.rows.size())));
  return s;
}

// The operands' values; of a grouped gemm, w has one matrix behind the other, and the bias one row.
struct Operands {
  std::vector<float> x, w, bias, c;
  std::vector<int> owners;   // the group of each row of x; empty without groups
  std::vector<float> slack;  // how far from w a correct kernel's weight may be, where unpacking rounds

  Operands(const Gemm& g, const Task& task, std::span<const std::span<std::byte>> buffers)
      : x(decoded(matrix(task, "x"), buffers)) {
    for (int group = 0; group < std::max(g.groups, 1); ++group) {
      const Matrix& m = matrix(task, "w");
      std::vector<std::span<std::byte>> own(buffers.begin(), buffers.end());
      for (const StreamName stream : kStreams)
        if (m.slot(stream) >= 0 && g.groups) {
          std::span<std::byte>& bytes = own[static_cast<std::size_t>(m.slot(stream))];
          const std::size_t each = bytes.size() / static_cast<std::size_t>(g.groups);
          bytes = bytes.subspan(each * static_cast<std::size_t>(group), each);
        }
      std::vector<float> one = decoded(m, own);
      const std::vector<float> of_one = slack_of_weights(g, m, one, own);
      slack.insert(slack.end(), of_one.begin(), of_one.end());
      if (w.empty())
        w = std::move(one);
      else
        w.insert(w.end(), one.begin(), one.end());
    }
    if (g.groups) {
      const auto named = [](const Buffer& b) { return b.name == "group_rows"; };
      const auto at = std::find_if(task.buffers.begin(), task.buffers.end(), named) - task.buffers.begin();
      owners = owners_of_rows(g, g.m, buffers[static_cast<std::size_t>(at)]);
    }
    if (g.x_from) x = through(g.x, g.x_rows(), g.k, x);
    if (g.bias) bias = decoded(matrix(task, "bias"), buffers);
    if (g.c) c = decoded(matrix(task, "c"), buffers);
  }
  // Whether a row is to be computed: whether a group has it.
  bool computed(std::int64_t row) const { return owners.empty() || owners[static_cast<std::size_t>(row)] >= 0; }
  // Where a column of a row's group is among the rows of w. Precondition: computed(row).
  std::int64_t w_row(const Gemm& g, std::int64_t row, std::int64_t col) const {
    return owners.empty() ? col : owners[static_cast<std::size_t>(row)] * g.n + col;
  }
  double bias_at(std::int64_t w_row) const { return bias.empty() ? 0 : bias[static_cast<std::size_t>(w_row)]; }
  double added_at(const Gemm& g, std::int64_t row, std::int64_t col) const {
    return c.empty() ? 0
                     : static_cast<double>(static_cast<float>(g.beta)) * c[static_cast<std::size_t>(row * g.n + col)];
  }
};

Expected expected_at(const Gemm& g, const Operands& o, std::int64_t row, std::int64_t col) {
  const float* x = o.x.data() + row * g.k;
  const std::int64_t w_row = o.w_row(g, row, col);
  const float* w = o.w.data() + w_row * g.k;
  const float* slack = o.slack.empty() ? nullptr : o.slack.data() + w_row * g.k;
  GemmSums sums;
  for (std::int64_t i = 0; i < g.k; ++i) {
    const double product = static_cast<double>(x[i]) * w[i];
    sums.product += product;
    sums.magnitude += std::fabs(product);
    if (slack) sums.rounding += std::fabs(x[i]) * slack[i];
  }
  sums.scale = static_cast<float>(g.alpha);
  sums.bias = o.bias_at(w_row);
  sums.residual = o.added_at(g, row, col);
  return gemm_expected(g, sums);
}

}  // namespace

std::vector<float> slack_of_weights(const Gemm& g, const Matrix& m, const std::vector<float>& values,
                                    std::span<const std::span<std::byte>> buffers) {
  const TileInfo* tiles = g.packing == Packing::tiles ? tile_info(g.w, g.x) : nullptr;
  const double of_table = g.packing == Packing::none ? table_rounding(fast_path(g.x), fast_path(g.w)) : 0;
  std::vector<float> slack;
  for (std::size_t i = 0; of_table > 0 && i < values.size(); ++i)
    slack.push_back(static_cast<float>(of_table) * std::fabs(values[i]));
  if (tiles && g.accumulation == Accumulation::fast && may_narrow(*tiles, g.x)) {
    // Weights that are rounded to x's element.
    const float* global = operand(m, buffers).global;
    const double scale = !global ? 1 : m.inverse_global ? 1.0 / *global : *global;
    for (const float v : values)
      slack.push_back(
          static_cast<float>(tiles->narrow_rounding * std::fabs(v) + tiles->narrow_least * std::fabs(scale)));
  } else if (tiles && tiles->rounding > 0) {
    // templates/operations/gemm/cuda/reference.cuh: |w| + 2 |w0| of w = code * step + w0; codes of 0 decode to w0.
    std::vector<float> base(values.size());
    if (tiles->offset) {
      std::vector<std::byte> zeros(buffers[static_cast<std::size_t>(m.data)].size());
      std::vector<std::span<std::byte>> without(buffers.begin(), buffers.end());
      without[static_cast<std::size_t>(m.data)] = zeros;
      base = decoded(m, without);
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      slack.push_back(static_cast<float>(tiles->rounding) * (std::fabs(values[i]) + 2 * std::fabs(base[i])));
  }
  return slack;
}

void run_on_host(const Gemm& g, const Task& task, std::span<const std::span<std::byte>> buffers) {
  const Operands o(g, task, buffers);
  const Sample sample = choose_sample(g.x_rows(), g.n, g.k);
  const Matrix& y = matrix(task, "y");
  const auto element = static_cast<std::size_t>(g.y.stream_bytes(0, 1, 1));
  std::byte* out = static_cast<std::byte*>(operand(y, buffers).data);
  parallel(0, sample.cols.size(), [&](std::size_t i) {
    const std::int64_t col = sample.cols[i];
    for (const std::int64_t row : sample.rows) {
      if (!o.computed(row)) continue;
      const float* w = o.w.data() + o.w_row(g, row, col) * g.k;
      const float* x = o.x.data() + row * g.k;
      float lanes[8] = {};  // short chains of additions, as in a kernel
      for (std::int64_t k = 0; k < g.k; ++k) lanes[k % 8] += x[k] * w[k];
      const float sum =
          ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
      const double linear = static_cast<float>(g.alpha) * sum + static_cast<float>(o.bias_at(o.w_row(g, row, col)));
      const auto value = static_cast<float>((activate(g.act, linear) + o.added_at(g, row, col)) / g.y_scale);
      g.y.info().encode(&value, 1, 1, {out + static_cast<std::size_t>(row * g.n + col) * element, nullptr, nullptr}, 0);
    }
  });
}

HostCheck check_on_host(const Gemm& g, const Task& task, std::span<const std::span<std::byte>> buffers) {
  const Operands o(g, task, buffers);
  const Sample sample = choose_sample(g.x_rows(), g.n, g.k);
  const std::vector<float> y = decoded(matrix(task, "y"), buffers);
  std::vector<Expected> expected(static_cast<std::size_t>(sample.size()));
  parallel(0, sample.cols.size(), [&](std::size_t i) {
    for (std::size_t r = 0; r < sample.rows.size(); ++r)
      if (o.computed(sample.rows[r]))
        expected[r * sample.cols.size() + i] = expected_at(g, o, sample.rows[r], sample.cols[i]);
  });
  Tally tally(g.y);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t row = sample.rows[i / sample.cols.size()], col = sample.cols[i % sample.cols.size()];
    if (o.computed(row)) tally.add(row, col, y[static_cast<std::size_t>(row * g.n + col)], expected[i]);
  }
  tally.check.outputs = g.x_rows() * g.n;
  return tally.check;
}

}  // namespace tilewright::gemm
