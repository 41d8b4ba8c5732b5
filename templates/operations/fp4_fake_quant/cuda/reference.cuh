// SPDX-License-Identifier: Apache-2.0
// One thread for each block, an element after the other by the formats' scalar codecs. Slow and plain: what the other
// kernel must equal bit for bit.
#pragma once
#include "formats/shared/format.cuh"
#include "operations/fp4_fake_quant/fp4_fake.cuh"
#include "operations/fp4_fake_quant/params.cuh"

namespace tw::fp4_fake_quant {

template <class X, class Y, int block>
struct Reference {
  TW_CONSTANTS(int, kThreads = 128, kSharedBytes = 0);

  TW_MEMBER static float element(const Args& args, i64 at) {
    return X::decode(static_cast<const u8*>(args.x) + at * X::kDataBytes, nullptr, 1.0f, 0);
  }
  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 per_row = blocks_per_row(shape.cols, block), index = static_cast<i64>(block_x()) * kThreads + thread_x();
    if (index >= args.rows * per_row) return;
    const Span span = span_of(index / per_row, index % per_row, shape.cols, block);
    float largest = 0.0f;
    for (int i = 0; i < span.count; ++i) largest = max_number(largest, abs_f(element(args, span.first + i)));
    const float scale = Fp4Scales(*args.amax).of_block(largest), inverse = div_rn(1.0f, scale);
    for (int i = 0; i < span.count; ++i) {
      const i64 at = span.first + i;
      const float v = fp4_fake(element(args, at), scale, inverse);
      Y::encode(&v, static_cast<u8*>(args.y) + at * Y::kDataBytes, nullptr, 1.0f, 0);
    }
  }
};

}  // namespace tw::fp4_fake_quant
