// SPDX-License-Identifier: Apache-2.0
// Pieces of tensors by accesses of 16 bytes, wherever they begin and end. Blocks take pieces in turns. One that found
// an infinity or a NaN says so in a word of the workspace; the last block to end makes found_inf of it, and clears it.
// A thread writes what it read itself, so y may be x.
#pragma once
#include "backends/cuda/atomic.cuh"
#include "backends/cuda/runs.cuh"
#include "formats/shared/format.cuh"
#include "operations/loss_scale/cuda/plan.cuh"
#include "operations/loss_scale/params.cuh"

namespace tw::loss_scale {

template <class X, const Knobs& knobs>
struct Vectors {
  using T = typename X::Element;
  TW_CONSTANTS(int, kThreads = knobs.threads, kLoads = knobs.loads, kTile = knobs.tile(), kSharedBytes = 0);
  TW_CONSTANTS(int, kBytes = static_cast<int>(sizeof(T)), kElements = 16 / kBytes);  // of an access
  static_assert(kBytes == 4 || kBytes == 2, "floats");
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "whole warps");

  float factor;
  float seen = 0.0f;

  TW_MEMBER explicit Vectors(float by) : factor(by) {}

  // Ordinary accesses: what is read may be written by this kernel.
  TW_MEMBER void one(const u8* x, u8* y) {
    const float v = to_f32(*reinterpret_cast<const T*>(x));
    look_at(seen, v);
    *reinterpret_cast<T*>(y) = from_f32<T>(unscaled(v, factor));
  }
  TW_MEMBER u32x4 vector(u32x4 q) {
    u32 words[4] = {q.x, q.y, q.z, q.w};
    float v[kElements];
    cast::to_floats<T, kElements>(v, words);
    TW_UNROLL for (int i = 0; i < kElements; ++i) {
      look_at(seen, v[i]);
      v[i] = unscaled(v[i], factor);
    }
    cast::from_floats<T, kElements>(words, v);
    return {words[0], words[1], words[2], words[3]};
  }
  TW_MEMBER void piece(u64 from, u64 to, i64 elements) {
    const u8* x = reinterpret_cast<const u8*>(from);
    u8* y = reinterpret_cast<u8*>(to);
    const int thread = static_cast<int>(thread_x());
    // Up to where an access of 16 bytes may begin; x and y are alike in that.
    const i64 apart = static_cast<i64>((0 - from) % 16) / kBytes;
    const i64 head = apart < elements ? apart : elements;
    if (thread < head) one(x + thread * kBytes, y + thread * kBytes);
    x += head * kBytes, y += head * kBytes;
    const i64 vectors = (elements - head) / kElements;
    TW_NO_UNROLL for (i64 tile = 0; tile < vectors; tile += kTile) {
      u32x4 v[kLoads];
      TW_UNROLL for (int i = 0; i < kLoads; ++i) {
        const i64 at = tile + i * kThreads + thread;
        v[i] = {0, 0, 0, 0};
        if (at < vectors) v[i] = *reinterpret_cast<const u32x4*>(x + at * 16);
      }
      TW_UNROLL for (int i = 0; i < kLoads; ++i) {
        const i64 at = tile + i * kThreads + thread;
        if (at < vectors) store_global16(y + at * 16, vector(v[i]));
      }
    }
    if (thread < elements - head - vectors * kElements) {
      const i64 at = (vectors * kElements + thread) * kBytes;
      one(x + at, y + at);
    }
  }

  TW_MEMBER static void run(const Args& args, const Shape&) {
    const Inverse inverse(*args.scale);
    Vectors block(inverse.factor);
    Piece next = {0, 0};
    if (block_x() < args.pieces) next = args.table[block_x()];
    TW_NO_UNROLL for (i64 i = block_x(); i < args.pieces; i += grid_x()) {
      const Piece piece = next;
      if (i + grid_x() < args.pieces) next = args.table[i + grid_x()];  // on its way while this one is computed
      block.piece(args.x + static_cast<u64>(piece.at), args.y + static_cast<u64>(piece.at), piece.elements);
    }
    u32 found = inverse.bad || is_nan(block.seen);
    TW_UNROLL for (int mask = 16; mask > 0; mask /= 2) found |= shuffle_xor(found, mask);
    if (found && thread_x() % 32 == 0) max_global(args.workspace, 1u);
    if (!ends_last(args.workspace + 1)) return;
    const bool before = args.found_before != nullptr && !(*args.found_before == 0.0f);
    *args.found_inf = exchange_global(args.workspace, 0) != 0 || before ? 1.0f : 0.0f;
  }
};

}  // namespace tw::loss_scale
