// SPDX-License-Identifier: Apache-2.0
// One block, an element after the other by the format's scalar codec. Slow and plain.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "operations/amax/params.cuh"

namespace tw::amax {

template <class X>
struct Reference {
  TW_CONSTANTS(int, kThreads = 32, kSharedBytes = 0);

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const u8* const x = static_cast<const u8*>(args.x);
    u32 most = 0;
    for (i64 i = thread_x(); i < args.rows * shape.cols; i += kThreads)
      most = max2(most, magnitude_bits(X::decode(x + i * X::kDataBytes, nullptr, 1.0f, 0)));
    for (int mask = 16; mask > 0; mask /= 2) most = max2(most, shuffle_xor(most, mask));
    if (thread_x() == 0) *args.amax = from_magnitude_bits(most);
  }
};

}  // namespace tw::amax
