// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/gemm/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tilewright::gemm {

Judged judge(Format y, float got, double value, double bound) {
  if (std::isnan(value)) return {std::isnan(got)};
  if (std::isinf(static_cast<float>(value))) return {got == static_cast<float>(value)};
  if (std::isinf(got)) {
    auto edge = static_cast<float>(value + std::copysign(bound, got));
    std::byte code[4];
    y.info().encode(&edge, 1, 1, {code, nullptr, nullptr}, 0);
    y.info().decode({code, nullptr, nullptr}, 1, 1, &edge);
    return {edge == got};
  }
  const double error = std::fabs(got - value);
  if (!(error <= bound)) return {};  // NaN never passes
  return {true, bound > 0 ? error / bound : 0};
}

std::vector<std::int64_t> spread(std::int64_t extent, std::int64_t count) {
  std::vector<std::int64_t> at;
  count = std::clamp<std::int64_t>(count, 1, extent);
  for (std::int64_t i = 0; i < count; ++i)
    at.push_back(count == 1 ? 0 : static_cast<std::int64_t>(static_cast<__int128>(i) * (extent - 1) / (count - 1)));
  return at;
}

void Tally::add(std::int64_t row, std::int64_t col, float got, const Expected& expected) {
  ++check.checked;
  const Judged judged = judge(format, got, expected.value, expected.bound);
  if (!judged.right) {
    if (check.wrong.empty()) check.wrong = wrong_at(row, col, got, expected.value, expected.bound);
    check.of_bound = std::numeric_limits<double>::infinity();
  }
  if (judged.right && !std::isfinite(got)) {
    ++check.infinite;
    return;
  }
  const double error = std::fabs(got - expected.value);
  if (error > check.largest_error) check.largest_error = error;
  check.of_bound = std::max(*check.of_bound, judged.of_bound);
}

std::string compare(Format y, std::int64_t n, std::span<const std::byte> got, std::span<const std::byte> oracle,
                    std::int64_t rows, const std::vector<int>& owners, double& worst) {
  const auto cells = static_cast<std::size_t>(rows * n);
  if (oracle.size() < 2 * cells * sizeof(float)) return "the reference wrote too little to judge by";
  const std::byte* values = oracle.data();
  const std::byte* bounds = values + cells * sizeof(float);
  std::vector<float> row(static_cast<std::size_t>(n)), value(row.size()), bound(row.size());
  const auto row_bytes = static_cast<std::size_t>(y.stream_bytes(0, 1, n));
  worst = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* of_row = got.data() + static_cast<std::size_t>(r) * row_bytes;
    if (!owners.empty() && owners[static_cast<std::size_t>(r)] < 0) {
      // Before the launch all bytes are one value.
      if (!std::all_of(of_row, of_row + row_bytes, [=](std::byte b) { return b == *of_row; }))
        return fmt::format("wrote y[{}], a row of no group", r);
      continue;
    }
    const Operand from{of_row, nullptr, nullptr};
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

std::string wrong_at(std::int64_t row, std::int64_t col, float got, double value, double bound) {
  if (!std::isfinite(value)) return fmt::format("y[{},{}] = {}, expected {}", row, col, got, value);
  return fmt::format("y[{},{}] = {}, expected {} +- {:.2g}", row, col, got, value, bound);
}

}  // namespace tilewright::gemm
