// SPDX-License-Identifier: Apache-2.0
// Random matrices in any format, on the host and on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/report.h"

namespace tilewright::bench {

// A matrix in a format, on the host and on the device.
struct Matrix {
  std::vector<float> decoded;
  std::vector<std::vector<std::byte>> streams;
  std::vector<Memory> device;
  Operand operand;
};

// The streams of a matrix at the pointers that `pointer` gives for their numbers.
Operand operand_over(Format f, const std::function<void*(int)>& pointer);

// Makes them, in `streams`, which is empty.
MutableOperand streams_of(Format f, std::int64_t rows, std::int64_t cols, std::vector<std::vector<std::byte>>& streams);

// Normal values of deviation `spread`, encoded by the format's own encoder.
Matrix make(const Device& device, Format f, std::int64_t rows, std::int64_t cols, unsigned seed, float spread = 1.0f);

// What `values` are after one of f's blocks has held them. f has no scale of the tensor.
std::vector<float> rounded_to(Format f, const std::vector<float>& values, std::int64_t rows, std::int64_t cols);

}  // namespace tilewright::bench
