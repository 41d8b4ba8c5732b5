// SPDX-License-Identifier: Apache-2.0
// An operation of a stranger: y[r,c] = factor * scales[r] * x[r,c]. Its public struct, which belongs into
// include/tilewright, its folder, and one line of the list in ../operations.cpp are all there is to it.
#pragma once

#include <tilewright/operation.h>

namespace tilewright {

struct RowScale {
  static constexpr std::string_view kOperation = "row_scale";
  Format x, y;  // f32 f16 bf16
  std::int64_t rows = 0, cols = 0;
  double factor = 1.0;
  friend bool operator==(const RowScale&, const RowScale&) = default;
};

struct RowScaleArgs {
  static constexpr std::string_view kOperation = "row_scale";
  const void* x = nullptr;        // [rows, cols]
  const float* scales = nullptr;  // [rows]
  void* y = nullptr;              // [rows, cols]
  std::int64_t rows = 0;
};

namespace row_scale {
const Operation& operation();
}

}  // namespace tilewright
