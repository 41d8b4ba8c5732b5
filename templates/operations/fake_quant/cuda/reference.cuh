// SPDX-License-Identifier: Apache-2.0
// One element for each thread, by the format's scalar codec; of a learned scale one warp for all elements of it, whose
// terms and sums are double precision's. Slow and plain: what the other kernel must equal, bit for bit but for dscale.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "operations/fake_quant/params.cuh"

namespace tw::fake_quant {

template <class X, bool by_row, Grad grad>
struct Reference {
  TW_CONSTANTS(bool, kLearned = grad == Grad::learned);
  TW_CONSTANTS(int, kThreads = kLearned ? 32 : 128, kSharedBytes = 0);

  TW_MEMBER static float at(const u8* p, i64 i) { return X::decode(p + i * X::kDataBytes, nullptr, 1.0f, 0); }

  // Returns the element's part of the gradient of its scale.
  TW_MEMBER static double element(const Args& args, const Codes& codes, i64 i) {
    const float x = at(args.x, i), dy = grad == Grad::none ? 0.0f : at(args.dy, i);
    const float v = grad == Grad::none ? codes.value(x) : codes.gradient(x, dy);
    X::encode(&v, args.y + i * X::kDataBytes, nullptr, 1.0f, 0);
    return static_cast<double>(dy) * static_cast<double>(codes.slope(x));
  }
  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 elements = args.rows * shape.cols;
    if constexpr (kLearned) {
      const i64 each = by_row ? shape.cols : elements;
      for (i64 s = block_x(); s < (by_row ? args.rows : 1); s += grid_x()) {
        const Codes codes = codes_of(args, shape, s);
        double sum = 0;
        for (i64 i = thread_x(); i < each; i += kThreads) sum += element(args, codes, s * each + i);
        for (int mask = 16; mask > 0; mask /= 2) {
          const u64 bits = bits_as<u64>(sum);
          sum += bits_as<double>(static_cast<u64>(shuffle_xor(static_cast<u32>(bits >> 32), mask)) << 32 |
                                 shuffle_xor(static_cast<u32>(bits), mask));
        }
        if (thread_x() == 0) args.dscale[s] = static_cast<float>(sum * static_cast<double>(args.factor));
      }
    } else {
      const i64 i = static_cast<i64>(block_x()) * kThreads + thread_x();
      if (i < elements) element(args, codes_of(args, shape, by_row ? i / shape.cols : 0), i);
    }
  }
};

}  // namespace tw::fake_quant
