// SPDX-License-Identifier: Apache-2.0
// Fake quantization on the host, by the functions that kernels call for an element and a block.
#include <algorithm>

#include "support/threads.h"
#include "templates/common/describe.h"
#include "templates/common/exact_floats.h"
#include "templates/operations/fp4_fake_quant/fp4_fake.cuh"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"

namespace tilewright::fp4_fake_quant {
namespace {

void fake_quantize_block(const float* x, float* y, std::int64_t count, const tw::Fp4Scales& scales) {
  float largest = 0.0f;
  for (std::int64_t i = 0; i < count; ++i)
    if (const float a = tw::abs_f(x[i]); a > largest) largest = a;  // a NaN is not
  const float scale = scales.of_block(largest), inverse = tw::div_rn(1.0f, scale);
  for (std::int64_t i = 0; i < count; ++i) y[i] = tw::fp4_fake(x[i], scale, inverse);
}

}  // namespace

void fake_quantize_run(const float* x, float* y, std::int64_t count, int block, const float* amax) {
  const ExactFloats exact;
  const tw::Fp4Scales scales(*amax);
  for (std::int64_t at = 0; at < count; at += block)
    fake_quantize_block(x + at, y + at, std::min<std::int64_t>(block, count - at), scales);
}

void fake_quantize(const float* x, float* y, std::int64_t rows, std::int64_t cols, int block, const float* amax) {
  constexpr std::int64_t kPart = 1 << 14;  // blocks that a core takes at a time
  const std::int64_t per_row = (cols + block - 1) / block, blocks = rows * per_row;
  parallel(0, static_cast<std::size_t>((blocks + kPart - 1) / kPart), [&](std::size_t part) {
    const ExactFloats exact;
    const tw::Fp4Scales scales(*amax);
    const std::int64_t first = static_cast<std::int64_t>(part) * kPart;
    for (std::int64_t index = first; index < std::min(first + kPart, blocks); ++index) {
      const std::int64_t col = index % per_row * block, begin = index / per_row * cols + col;
      fake_quantize_block(x + begin, y + begin, std::min<std::int64_t>(block, cols - col), scales);
    }
  });
}

}  // namespace tilewright::fp4_fake_quant
