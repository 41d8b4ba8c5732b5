// SPDX-License-Identifier: Apache-2.0
// One token's activations that arrive as floats: a block quantizes its part of the row into shared memory before it
// multiplies, while its weights are loaded. Codes and scales are those that a cast to F writes.
#pragma once
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/quantized.cuh"
#include "operations/gemm/cuda/wgmma/traits.cuh"

namespace tw::gemm {

template <class F, class From>
struct Activations<fmt::Quantized<F, From>> {
  using Format = F;
  TW_CONSTANTS(bool, kQuantizes = !F::kRowScale);  // a prologue does (prologue.cuh)
  using Quantized = fmt::Quantized<F, From>;

  // Elements k_begin to k_end, whole blocks, of row m, by THREADS threads in whole warps.
  template <int THREADS>
  TW_MEMBER static void fill(u8* to, const Args& args, const Shape& shape, i64 m, i64 k_begin, i64 k_end, int thread) {
    constexpr int kFloats = 8, kLanes = F::kBlock / kFloats, kAhead = 4;  // of a lane; to a block; loads in flight
    const i64 ldx = args.ldx ? args.ldx : shape.k;
    const u8* const row = static_cast<const u8*>(args.x.data) + m * data_stride<Quantized>(ldx);
    const int pieces = static_cast<int>((k_end - k_begin) / kFloats);
    // Whole warps loop together: lanes share a block's scale.
    for (int first = thread / 32 * 32; first < pieces; first += kAhead * THREADS) {
      typename Quantized::template Floats<kFloats> x[kAhead] = {};
      TW_UNROLL for (int i = 0; i < kAhead; ++i) {
        const int at = first + i * THREADS + thread % 32;
        if (at < pieces) Quantized::template load_floats<kFloats>(x[i], row, k_begin + at * kFloats);
      }
      TW_UNROLL for (int i = 0; i < kAhead; ++i) {
        const int at = first + i * THREADS + thread % 32;
        u32 codes[kFloats / 4];
        const float scale = Quantized::template code_lanes<kFloats>(x[i], codes);
        if (at >= pieces) continue;
        u8* const block = to + at / kLanes * F::kDataBytes;
        u32* const own = reinterpret_cast<u32*>(block + F::kCodesAt + at % kLanes * kFloats);
        TW_UNROLL for (int j = 0; j < kFloats / 4; ++j) own[j] = codes[j];
        if (at % kLanes == 0) *reinterpret_cast<u32*>(block) = f32_to_f16_bits(scale);  // the sum beside it is not read
      }
    }
  }
};

}  // namespace tw::gemm
