// SPDX-License-Identifier: Apache-2.0
// Signed bytes as wider elements of the same value.
#pragma once
#include "backends/cuda/numeric.cuh"
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"

namespace tw::gemm {

// Four signed bytes to four 16-bit floats of the same value, exactly.
template <class T>
TW_DEVICE u32x2 widen(u32 codes) {
  if constexpr (same<T, f16>()) {
    // A byte b + 128 under the exponent of 1024 is the half 1024 + b + 128.
    const u32 biased = codes ^ 0x80808080u;
    const u32 lo = prmt(biased, 0x64646464u, 0x4140u), hi = prmt(biased, 0x64646464u, 0x4342u);
    return {sub_f16x2(lo, 0x64806480u), sub_f16x2(hi, 0x64806480u)};
  } else {
    return {pack_bf16x2(fmt::code_at(&codes, 0), fmt::code_at(&codes, 1)),
            pack_bf16x2(fmt::code_at(&codes, 2), fmt::code_at(&codes, 3))};
  }
}

// Signed bytes of at most four significant bits to E4M3 of the same value, exactly.
TW_DEVICE u32 e4m3_of(u32 codes) {
  const u32x2 halves = widen<f16>(codes);
  return f16x2_to_e4m3x2(halves.x) | f16x2_to_e4m3x2(halves.y) << 16;
}

}  // namespace tw::gemm
