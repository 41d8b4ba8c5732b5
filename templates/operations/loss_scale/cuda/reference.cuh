// SPDX-License-Identifier: Apache-2.0
// One warp, an element after the other by the format's scalar codec. Slow and plain: what the other kernel must equal
// bit for bit. And the kernel of update_scale, which has but one step to make.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "operations/loss_scale/params.cuh"

namespace tw::loss_scale {

template <class X>
struct Reference {
  TW_CONSTANTS(int, kThreads = 32, kSharedBytes = 0);

  TW_MEMBER static void run(const Args& args, const Shape&) {
    const Inverse inverse(*args.scale);
    u32 found = inverse.bad || (args.found_before != nullptr && !(*args.found_before == 0.0f));
    for (i64 i = 0; i < args.pieces; ++i) {
      const Piece piece = args.table[i];
      for (i64 e = thread_x(); e < piece.elements; e += kThreads) {
        const u64 at = static_cast<u64>(piece.at + e * X::kDataBytes);
        const u8* const x = reinterpret_cast<const u8*>(args.x + at);
        const float v = X::decode(x, nullptr, 1.0f, 0), r = unscaled(v, inverse.factor);
        found |= !(abs_f(v) < bits_as<float>(0x7f800000u));
        X::encode(&r, reinterpret_cast<u8*>(args.y + at), nullptr, 1.0f, 0);
      }
    }
    for (int mask = 16; mask > 0; mask /= 2) found |= shuffle_xor(found, mask);
    if (thread_x() == 0) *args.found_inf = found ? 1.0f : 0.0f;
  }
};

}  // namespace tw::loss_scale

namespace tw::update_scale {

using Args = loss_scale::UpdateArgs;
using Shape = loss_scale::UpdateShape;

struct Reference {
  TW_CONSTANTS(int, kThreads = 32, kSharedBytes = 0);

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    if (thread_x() != 0) return;
    const loss_scale::Step next = loss_scale::next_step({*args.scale, *args.good_steps}, *args.found_inf, shape);
    *args.new_scale = next.scale;
    *args.new_good_steps = next.good;
  }
};

}  // namespace tw::update_scale
