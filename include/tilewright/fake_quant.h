// SPDX-License-Identifier: Apache-2.0
// The operations fake_quant and fp4_fake_quant: a tensor rounded to quantized values and left in floats
//
//   fake_quant     x=bf16 rows=512 cols=4096 [qmin=-8] [qmax=7] [scope=row] [grad=learned]
//   fp4_fake_quant x=bf16 y=bf16 rows=512 cols=3456 [block=128]
//
// fake_quant rounds to integers from qmin to qmax under a scale and a zero point that are given, for the tensor or for
// each row; with `grad` it is the backward pass of that, straight through, and of its scale if that is learned (LSQ).
// fp4_fake_quant rounds each value to E2M1 (0 .5 1 1.5 2 3 4 6 and their negatives) times a scale of its block, and
// that scale to E4M3 times one for the tensor; docs/use/fake-quant.md has the formulas. Blocks begin anew in each row,
// whose last one may be short. Values, usable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

enum class ScaleScope { tensor, row };
enum class FakeQuantGrad {
  none,      // y = fake_quant(x)
  straight,  // y = the gradient of x, given that of fake_quant(x)
  learned    // besides, the gradient of each scale
};

struct FakeQuant {
  static constexpr std::string_view kOperation = "fake_quant";
  static constexpr std::size_t kWorkspace = 32776;  // bytes, of a learned scale

  Format x;  // f32 f16 bf16; y and dy are alike
  std::int64_t rows = 0, cols = 0;
  std::int64_t qmin = -128, qmax = 127;  // codes: -128 <= qmin < qmax <= 255, at most 256 of them
  ScaleScope scope = ScaleScope::tensor;
  FakeQuantGrad grad = FakeQuantGrad::none;
  friend bool operator==(const FakeQuant&, const FakeQuant&) = default;
};

struct Fp4FakeQuant {
  static constexpr std::string_view kOperation = "fp4_fake_quant";

  Format x, y;  // f32 f16 bf16
  std::int64_t rows = 0, cols = 0;
  int block = 16;  // elements of a row that share a scale: 8 16 32 64 128 256
  friend bool operator==(const Fp4FakeQuant&, const Fp4FakeQuant&) = default;
};

// What a launch passes. Standard layout, as templates/operations/fake_quant/params.cuh and
// templates/operations/fp4_fake_quant/params.cuh. Device pointers.
struct FakeQuantArgs {
  static constexpr std::string_view kOperation = "fake_quant";

  const void* x = nullptr;                   // [rows, cols], dense, 16-byte aligned
  const void* dy = nullptr;                  // with grad: likewise, the gradient of fake_quant(x)
  void* y = nullptr;                         // likewise, what is computed; may be x or dy itself
  const float* scale = nullptr;              // one, or [rows]: positive and finite
  const std::int32_t* zero_point = nullptr;  // as many, each from qmin to qmax; null: 0
  float* dscale = nullptr;                   // grad=learned: as many, the gradient of each scale
  void* workspace =
      nullptr;            // grad=learned, scope=tensor: FakeQuant::kWorkspace bytes, 8-byte aligned, that no other
                          // launch uses meanwhile. Its first 8 are zero when first used; every launch leaves them so
  std::int64_t rows = 0;  // of this call; 0 launches nothing
  float factor = 1;       // of dscale: LSQ's is 1 / sqrt(qmax * the elements that share a scale)
};

struct Fp4FakeQuantArgs {
  static constexpr std::string_view kOperation = "fp4_fake_quant";

  const void* x = nullptr;      // [rows, cols], dense, 16-byte aligned
  void* y = nullptr;            // likewise; may be x itself if formats agree
  const float* amax = nullptr;  // one float, the tensor's largest magnitude. Unless it is positive and finite, every
                                // block's scale is 1
  std::int64_t rows = 0;        // of this call; 0 launches nothing
};

}  // namespace tilewright
