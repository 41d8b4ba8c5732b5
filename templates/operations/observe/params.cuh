// SPDX-License-Identifier: Apache-2.0
// Parameters of the observer's kernel: a launch's (tilewright::ObserveArgs, byte for byte) and the observer's
// (tilewright::ObserveState). include/tilewright/device_observer.h documents both.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::observe {

TW_CONSTANTS(int, kThreads = 256, kSharedBins = 4096, kSharedBytes = 2 * kSharedBins * 4);

enum class Step : i32 { range, settle, count, end_batch };

struct Args {
  Step step;
  i32 reserved;
  const void* x;
  i64 elements, first, inner;
};

struct Channel {
  u32 least, most, batch_least, batch_most;
  i32 exponent, reserved;
  u64 nans, batches;
  double first[2], average[2];
};

struct Shape {
  i64 channels;
  i32 bins, log2_bins;
  double momentum;
  Channel* state;
  u64* counts;
  u64* infinite;

  TW_MEMBER i64 channel(i64 element, i64 inner) const { return channels == 1 ? 0 : element / inner % channels; }
};

// Finite floats as integers in the order of their values, above 0; zeros of both signs are one.
TW_FN u32 key(float v) {
  const u32 bits = v == 0 ? 0u : bits_as<u32>(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
TW_FN float value(u32 key) { return bits_as<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// quantize/calibration/observation.h's: the exponent of the least power of two above a magnitude, less that of the
// bins.
TW_FN i32 exponent_for(float amax, i32 log2_bins) {
  const u32 bits = bits_as<u32>(amax);
  i32 exponent = -148;
  if (bits >= 0x00800000u) {
    exponent = static_cast<i32>(bits >> 23) - 126;
  } else {
    for (u32 rest = bits >> 1; rest; rest >>= 1) ++exponent;
  }
  return exponent - log2_bins;
}

}  // namespace tw::observe
