// SPDX-License-Identifier: Apache-2.0
// Parameters of every amax kernel: what a call passes (tilewright::AmaxArgs, byte for byte) and what prepare() fixed.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::amax {

struct Args {
  const void* x;  // [rows, cols]
  float* amax;
  u32* workspace;  // the largest magnitude of blocks that have ended, and their number; zero between launches
  i64 rows;
};

struct Shape {
  i64 cols;
};

// Magnitudes are compared as integers: bits of floats without a sign are in the order of their values, infinity is
// above them, and NaNs are above infinity.
constexpr u32 kInfinity = 0x7f800000, kNan = 0x7fc00000;
TW_FN u32 magnitude_bits(float v) { return bits_as<u32>(v) & 0x7fffffffu; }
TW_FN float from_magnitude_bits(u32 bits) { return bits_as<float>(bits > kInfinity ? kNan : bits); }

}  // namespace tw::amax
