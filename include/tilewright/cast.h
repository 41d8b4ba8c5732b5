// SPDX-License-Identifier: Apache-2.0
// The operation cast: y = encode(decode(x)), row by row
//
//   cast x=f32 y=q8_1 rows=2 cols=14336 [encoder=NAME] [rounding=stochastic]
//
// Values, usable from any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

// stochastic: scales are the encoder's, but a value between two neighbouring codes becomes one of them at random, with
// probabilities for which the expected result equals the value. A value that equals a code does not change. Random
// numbers depend on CastArgs::seed and the element's position in the matrix: equal seeds give equal bits, on the device
// and on the host. For fp8, int8, int4 and fp4, except formats with zero points.
enum class Rounding { nearest, stochastic };

struct Cast {
  static constexpr std::string_view kOperation = "cast";

  Format x, y;  // one of them is f32, f16 or bf16
  std::int64_t rows = 0, cols = 0;
  int encoder = 0;  // index into y.info().encoders; the text has its name
  Rounding rounding = Rounding::nearest;
  friend bool operator==(const Cast&, const Cast&) = default;
};

// What a launch passes. Standard layout, as templates/operations/cast/params.cuh. Device pointers, 16-byte aligned.
struct CastArgs {
  static constexpr std::string_view kOperation = "cast";

  Operand x = {};          // [rows, cols]
  MutableOperand y = {};   // [rows, cols]; y.global is read, not written
  std::int64_t rows = 0;   // of this call; 0 launches nothing
  std::uint64_t seed = 0;  // of stochastic rounding, otherwise unused. A captured launch uses the same seed each time
};

}  // namespace tilewright
