// SPDX-License-Identifier: Apache-2.0
// The operations fake_quant and fp4_fake_quant: a tensor is rounded to quantized values, but stays in floats
//
//   fake_quant     x=bf16 rows=512 cols=4096 [qmin=-8] [qmax=7] [scope=row] [grad=learned]
//   fp4_fake_quant x=bf16 y=bf16 rows=512 cols=3456 [block=128]
//
// fake_quant rounds to integers from qmin to qmax, with a given scale and zero point for the tensor or for each row.
// With `grad` it computes the backward pass instead, straight through, and the gradient of a learned scale (LSQ).
// fp4_fake_quant rounds each value to E2M1 (0 .5 1 1.5 2 3 4 6 and their negatives) times a scale of its block, and
// this scale to E4M3 times a scale of the tensor. Each row starts a new block, and the last block of a row may be
// short. docs/use/fake-quant.md has the formulas. Values; any thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

enum class ScaleScope { tensor, row };
enum class FakeQuantGrad {
  none,      // y = fake_quant(x)
  straight,  // y = the gradient of x, from the gradient of fake_quant(x)
  learned    // the same, and the gradient of each scale
};

struct FakeQuant {
  static constexpr std::string_view kOperation = "fake_quant";
  static constexpr std::size_t kWorkspace = 32776;  // bytes, of a learned scale

  Format x;  // f32 f16 bf16; also the format of y and dy
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
  void* y = nullptr;                         // likewise, the result; may be x or dy itself
  const float* scale = nullptr;              // one, or [rows]: positive and finite
  const std::int32_t* zero_point = nullptr;  // the same number, each from qmin to qmax; null: 0
  float* dscale = nullptr;                   // grad=learned: the gradient of each scale
  void* workspace =
      nullptr;            // grad=learned, scope=tensor: FakeQuant::kWorkspace bytes, 8-byte aligned, that no other
                          // launch uses meanwhile. Its first 8 are zero when first used; every launch leaves them so
  std::int64_t rows = 0;  // of this call; 0 launches nothing
  float factor = 1;       // of dscale: LSQ's is 1 / sqrt(qmax * the elements that share a scale)
};

struct Fp4FakeQuantArgs {
  static constexpr std::string_view kOperation = "fp4_fake_quant";

  const void* x = nullptr;      // [rows, cols], dense, 16-byte aligned
  void* y = nullptr;            // likewise; may be x itself if formats are equal
  const float* amax = nullptr;  // one float, the tensor's largest magnitude. Unless it is positive and finite, every
                                // block's scale is 1
  std::int64_t rows = 0;        // of this call; 0 launches nothing
};

}  // namespace tilewright
