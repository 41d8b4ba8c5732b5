// SPDX-License-Identifier: Apache-2.0
#include "templates/gemm/judge.h"

#include <fmt/format.h>

#include <cmath>

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

std::string wrong_at(std::int64_t row, std::int64_t col, float got, double value, double bound) {
  if (!std::isfinite(value)) return fmt::format("y[{},{}] = {}, expected {}", row, col, got, value);
  return fmt::format("y[{},{}] = {}, expected {} +- {:.2g}", row, col, got, value, bound);
}

}  // namespace tilewright::gemm
