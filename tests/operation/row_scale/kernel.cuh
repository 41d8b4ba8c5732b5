// SPDX-License-Identifier: Apache-2.0
// One thread per element, a block per part of a row. Blocks are numbered along x alone: along y there are at most
// 65535.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "row_scale/params.cuh"

namespace tw::row_scale {

template <class X, class Y, int threads>
struct Plain {
  TW_CONSTANTS(int, kThreads = threads, kSharedBytes = 0);

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const u32 of_a_row = static_cast<u32>(ceil_div64(shape.cols, kThreads));
    const i64 row = block_x() / of_a_row, col = static_cast<i64>(block_x() % of_a_row) * kThreads + thread_x();
    if (row >= args.rows || col >= shape.cols) return;
    const i64 at = row * shape.cols + col;
    const float x = X::decode(static_cast<const u8*>(args.x) + at * X::kDataBytes, nullptr, 1.0f, 0);
    const float v = x * (shape.factor * args.scales[row]);
    Y::encode(&v, static_cast<u8*>(args.y) + at * Y::kDataBytes, nullptr, 1.0f, 0);
  }
};

}  // namespace tw::row_scale
