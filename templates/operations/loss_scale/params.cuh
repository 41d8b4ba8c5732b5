// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels of loss scaling: what a call passes (tilewright::UnscaleArgs and UpdateScaleArgs, byte for
// byte) and what prepare() fixed; and what is computed of an element and of a step.
#pragma once
#include "backends/cuda/numeric.cuh"

namespace tw::loss_scale {

struct Piece {
  i64 at, elements;
};

struct Args {
  u64 x, y;            // addresses, or 0: sums with them are formed as integers
  const Piece* table;  // [pieces]
  const float* scale;
  float* found_inf;
  const float* found_before;
  u32* workspace;  // whether an ended block has found something, and the number of those; zero between launches
  i64 pieces;
};

struct Shape {
  i64 elements;
};

// 1 / scale, rounded once: PyTorch's reciprocal in double precision, rounded to single, is the same number.
struct Inverse {
  float factor;
  bool bad;  // a scale that no loss can have been scaled by
  TW_MEMBER explicit Inverse(float scale)
      : factor(div_rn(1.0f, scale)), bad(!(scale > 0.0f && scale < bits_as<float>(0x7f800000u))) {}
};
// A NaN becomes the one NaN that the device's multiplication has.
TW_FN float unscaled(float v, float factor) {
  const float r = mul_rn(v, factor);
#if defined(__CUDA_ARCH__)
  return r;
#else
  return is_nan(r) ? bits_as<float>(0x7fffffffu) : r;
#endif
}
// `seen` becomes and stays a NaN if v is infinite or one; it starts as 0.
TW_FN void look_at(float& seen, float v) { seen = fma_rn(v, 0.0f, seen); }

struct UpdateArgs {
  const float* scale;
  const i32* good_steps;
  const float* found_inf;
  float* new_scale;
  i32* new_good_steps;
};
struct UpdateShape {
  double growth, backoff;
  i64 interval;
};
struct Step {
  float scale;
  i32 good;
};
// _amp_update_scale_ of PyTorch: factors in double precision; growth that leaves single precision is left out.
TW_FN Step next_step(const Step& now, float found_inf, const UpdateShape& how) {
  if (!(found_inf == 0.0f)) return {static_cast<float>(now.scale * how.backoff), 0};
  if (now.good + i64{1} < how.interval) return {now.scale, now.good + 1};
  const float grown = static_cast<float>(now.scale * how.growth);
  return {abs_f(grown) < bits_as<float>(0x7f800000u) ? grown : now.scale, 0};
}

}  // namespace tw::loss_scale
