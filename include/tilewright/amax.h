// SPDX-License-Identifier: Apache-2.0
// The operation amax: the largest magnitude of a tensor, for the scale of the whole tensor
//
//   amax x=bf16 rows=512 cols=4096
//
// amax = max |x[i, j]|, exact: +0 for a tensor of zeros, infinity if an element is infinite, and a quiet NaN
// (0x7fc00000) if an element is a NaN, as in torch.amax. It takes one launch, and the bits do not depend on the order
// of blocks. A value; any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

struct Amax {
  static constexpr std::string_view kOperation = "amax";
  static constexpr std::size_t kWorkspace = 8;  // bytes

  Format x;  // f32 f16 bf16
  std::int64_t rows = 0, cols = 0;
  friend bool operator==(const Amax&, const Amax&) = default;
};

// What a launch passes. Standard layout, as templates/operations/amax/params.cuh. Device pointers.
struct AmaxArgs {
  static constexpr std::string_view kOperation = "amax";

  const void* x = nullptr;    // [rows, cols], dense, 16-byte aligned
  float* amax = nullptr;      // one float; an input of fp4_fake_quant
  void* workspace = nullptr;  // Amax::kWorkspace bytes, 8-byte aligned, that no other launch uses meanwhile. Zero when
                              // first used; every launch leaves it zero
  std::int64_t rows = 0;      // of this call; 0 launches nothing and does not write amax
};

}  // namespace tilewright
