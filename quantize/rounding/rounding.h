// SPDX-License-Identifier: Apache-2.0
// Codes, scales and zero points of one format for strips of 64 rows of a weight: the format's integer grid, which GPTQ
// rounds to one column at a time, with scales that it already has.
#pragma once

#include <tilewright/format.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quantize/rounding/tiles.h"

namespace tilewright::quantize {

constexpr std::int64_t kStrip = kTile;  // rows of w that are handled together

// The encoder of that name, the format's first one if it is empty. Throws Error (invalid_argument) naming the encoders.
int encoder_index(Format format, std::string_view name);

// A weight's name without ".weight": calibration data go by either.
std::string_view layer_of(std::string_view tensor);

// Of one group in each row of a strip.
struct Rule {
  float scale[kStrip];
  std::byte items[kStrip * 4];  // of the format's scales, as stored
};

class Rounder {
 public:
  // Throws Error for formats and encoders that QuantizeTarget does not take; `name` is the layer's.
  Rounder(Format format, int encoder, std::string_view name);

  Format format() const { return format_; }
  bool row_scaled() const { return row_scaled_; }
  int item_bytes() const { return item_bytes_; }

  // The rule for groups whose least value is low[row] and whose largest is high[row], 0 among them. False if a scale is
  // not finite.
  bool choose(const float* low, const float* high, Rule& rule) const;

  // One element of each row: its code, and the value that it decodes to.
  void round(const Rule& rule, const float* w, std::uint8_t* codes, float* values) const;

 private:
  Format format_;
  int encoder_, item_bytes_;
  bool row_scaled_;
};

}  // namespace tilewright::quantize
