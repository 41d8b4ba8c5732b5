// SPDX-License-Identifier: Apache-2.0
// A part of k of one tile, stage by stage, into a thread's sums. Which way, is decided by where weights come from and
// whether a panel's products are promoted.
#pragma once
#include "operations/gemm/cuda/wgmma/multiply/codes.cuh"
#include "operations/gemm/cuda/wgmma/multiply/registers.cuh"
#include "operations/gemm/cuda/wgmma/multiply/shared.cuh"
#include "operations/gemm/cuda/wgmma/multiply/warps.cuh"

namespace tw::gemm {

template <class T>
TW_DEVICE void multiply(typename T::Ring& ring, const typename T::Tiles& tiles, const typename T::Scales& scales,
                        typename T::Sums& sums, int thread) {
  const int lane = thread % 32, warpgroup = uniform(thread / 128);
  const MathThread id{thread, lane, warpgroup % T::kWarpgroupsN, T::kWarpgroupsK > 1 ? warpgroup / T::kWarpgroupsN : 0};
  TW_UNROLL for (int s = 0; s < T::kStrips; ++s) TW_UNROLL for (int i = 0; i < T::kSums; ++i) sums[s][i] = 0;
  const u32 x_base = wgmma_descriptor(ring.stages);
  if constexpr (T::kCodes && T::kBlockM == 1)
    MultiplyCodes<T>::multiply_row(ring, tiles, sums, id);
  else if constexpr (T::kCodes)
    MultiplyCodes<T>::multiply_tokens(ring, tiles, sums, id);
  else if constexpr (T::kWarpMma)
    MultiplyWarps<T>::accumulate(ring, tiles, sums, id);
  else if constexpr (T::Weights::kRegisters && T::kPromotes)
    MultiplyRegisters<T>::promote(ring, tiles, sums, x_base, id);
  else if constexpr (T::Weights::kRegisters)
    MultiplyRegisters<T>::accumulate(ring, tiles, sums, x_base, id);
  else if constexpr (T::kPromotes)
    MultiplyShared<T>::promote(ring, tiles, scales, sums, x_base, id);
  else
    MultiplyShared<T>::accumulate(ring, tiles, sums, x_base, id);
}

}  // namespace tw::gemm
