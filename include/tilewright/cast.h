// SPDX-License-Identifier: Apache-2.0
// The operation cast: y = encode(decode(x)), row by row
//
//   cast x=f32 y=q8_1 rows=2 cols=14336 [encoder=NAME]
//
// Values, usable from any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

struct Cast {
  static constexpr std::string_view kOperation = "cast";

  Format x, y;  // one of them is f32, f16 or bf16
  std::int64_t rows = 0, cols = 0;
  int encoder = 0;  // index into y.info().encoders; the text has its name
  friend bool operator==(const Cast&, const Cast&) = default;
};

// What a launch passes. Standard layout, as templates/cast/params.cuh. Device pointers, 16-byte aligned.
struct CastArgs {
  static constexpr std::string_view kOperation = "cast";

  Operand x = {};         // [rows, cols]
  MutableOperand y = {};  // [rows, cols]; y.global is read, not written
  std::int64_t rows = 0;  // of this call; 0 launches nothing
};

}  // namespace tilewright
