// SPDX-License-Identifier: Apache-2.0
// The operations fp4_fake_quant and dynamic_block_quantize: what FP4 leaves of a tensor, as floats
//
//   fp4_fake_quant         x=bf16 y=bf16 rows=512 cols=4096 [block=16]
//   dynamic_block_quantize x=bf16 y=bf16 rows=512 cols=3456 [block=128]
//
// Both round each value to E2M1 (0 .5 1 1.5 2 3 4 6 and their negatives) times a scale of its block, and that scale to
// E4M3 times one for the tensor; docs/fake-quant.md has the formulas. They differ in where blocks lie: those of
// fp4_fake_quant follow each other through the whole dense tensor, those of dynamic_block_quantize begin anew in each
// row, whose last one may be short. Values, usable from any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

struct Fp4FakeQuant {
  static constexpr std::string_view kOperation = "fp4_fake_quant";

  Format x, y;  // f32 f16 bf16
  std::int64_t rows = 0, cols = 0;
  int block = 16;  // elements that share a scale: 8 16 32 64 128 256; cols is a multiple
  friend bool operator==(const Fp4FakeQuant&, const Fp4FakeQuant&) = default;
};

struct DynamicBlockQuantize {
  static constexpr std::string_view kOperation = "dynamic_block_quantize";

  Format x, y;  // f32 f16 bf16
  std::int64_t rows = 0, cols = 0;
  int block = 16;  // elements of a row that share a scale: 8 16 32 64 128 256
  friend bool operator==(const DynamicBlockQuantize&, const DynamicBlockQuantize&) = default;
};

// What a launch passes. Standard layout, as templates/fake_quant/params.cuh. Device pointers.
struct Fp4FakeQuantArgs {
  static constexpr std::string_view kOperation = "fp4_fake_quant";

  const void* x = nullptr;      // [rows, cols], dense, 16-byte aligned
  void* y = nullptr;            // likewise; may be x itself if formats agree
  const float* amax = nullptr;  // one float, the tensor's largest magnitude. Unless it is positive and finite, every
                                // block's scale is 1
  std::int64_t rows = 0;        // of this call; 0 launches nothing
};

struct DynamicBlockQuantizeArgs {
  static constexpr std::string_view kOperation = "dynamic_block_quantize";

  const void* x = nullptr;  // as above
  void* y = nullptr;
  const float* amax = nullptr;
  std::int64_t rows = 0;
};

}  // namespace tilewright
