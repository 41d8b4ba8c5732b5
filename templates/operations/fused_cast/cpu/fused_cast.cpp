// SPDX-License-Identifier: Apache-2.0
// A fused cast on the CPU, by rows: single precision, but for a row's sum of squares; then the format's scalar encoder.
#include "templates/operations/fused_cast/cpu/fused_cast.h"

#include <tilewright/fused_cast.h>
#include <tilewright/numerics.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "templates/backends/cpu/by_rows.h"
#include "templates/backends/cpu/rows.h"

namespace tilewright::cpu {
namespace {

void decode(Format f, const void* from, std::int64_t row, std::int64_t cols, float* to) {
  f.info().decode(from_row(f, Operand{from, nullptr, nullptr}, row, cols), 1, cols, to);
}
std::vector<float> vector(const std::optional<Format>& f, const void* from, std::int64_t cols) {
  std::vector<float> values(f ? static_cast<std::size_t>(cols) : 0);
  if (f) decode(*f, from, 0, cols, values.data());
  return values;
}

// What a row is multiplied by.
float inverse_rms(const FusedCast& c, const float* h) {
  double sum = 0;
  for (std::int64_t i = 0; i < c.cols; ++i) sum += static_cast<double>(h[i]) * h[i];
  if (sum > std::numeric_limits<float>::max()) return 0;
  return static_cast<float>(1 / std::sqrt(sum / static_cast<double>(c.cols) + static_cast<float>(c.eps)));
}

void fused_cast_rows(const FusedCast& c, const FusedCastArgs& a, std::int64_t first, std::int64_t rows) {
  const bool gated = c.gate != Gate::none;
  const std::vector<float> bias = vector(c.bias, a.bias, c.cols), weight = vector(c.weight, a.weight, c.cols);
  const auto cols = static_cast<std::size_t>(c.cols);
  std::vector<float> h(gated ? 2 * cols : cols), residual(cols);
  for (std::int64_t row = first; row < first + rows; ++row) {
    decode(c.x, a.x, row, static_cast<std::int64_t>(h.size()), h.data());
    if (c.bias)
      for (std::size_t i = 0; i < cols; ++i) h[i] += bias[i];
    if (c.residual == Residual::add) {
      decode(c.x, a.residual, row, c.cols, residual.data());
      for (std::size_t i = 0; i < cols; ++i) h[i] += residual[i];
      const MutableOperand out = from_row(c.x, MutableOperand{a.residual_out, nullptr, nullptr}, row, c.cols);
      c.x.info().encode(h.data(), 1, c.cols, out, 0);
      decode(c.x, a.residual_out, row, c.cols, h.data());
    }
    if (c.norm == Norm::rms) {
      const float inverse = inverse_rms(c, h.data());
      for (std::size_t i = 0; i < cols; ++i) h[i] *= weight.empty() ? inverse : inverse * weight[i];
    }
    if (c.act != Activation::none)
      for (std::size_t i = 0; i < cols; ++i) h[i] = static_cast<float>(activate(c.act, h[i]));
    if (gated)
      for (std::size_t i = 0; i < cols; ++i) h[i] *= h[cols + i];
    c.y.info().encode(h.data(), 1, c.cols, from_row(c.y, a.y, row, c.cols), c.encoder);
  }
}

}  // namespace

std::span<const Family* const> fused_cast_families() {
  static const RowsFamily<FusedCast, FusedCastArgs> family(
      "cpu_fused_cast", "CPU, any pair of formats, a row at a time in single precision", &fused_cast_rows);
  static const Family* const list[] = {&family};
  return list;
}

}  // namespace tilewright::cpu
