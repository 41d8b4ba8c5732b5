// SPDX-License-Identifier: Apache-2.0
// Runs of blocks. Neighbouring lanes hold a block in registers, read by accesses of 16 bytes that lie side by side, and
// agree on its largest magnitude by shuffles. Where rows are not whole blocks, nor a multiple of 16 bytes, accesses are
// single elements. A thread writes what it read itself, so y may be x.
#pragma once
#include "backends/cuda/runs.cuh"
#include "formats/shared/format.cuh"
#include "operations/fp4_fake_quant/cuda/fp4_fake_block.cuh"
#include "operations/fp4_fake_quant/cuda/plan.cuh"
#include "operations/fp4_fake_quant/params.cuh"

namespace tw::fp4_fake_quant {

template <class X, class Y, const Knobs& knobs>
struct Blocks {
  using T = typename X::Element;
  using U = typename Y::Element;
  TW_CONSTANTS(int, kThreads = knobs.threads, kSharedBytes = 0);
  TW_CONSTANTS(int, kBlock = knobs.block, kPasses = knobs.passes, kPiece = knobs.piece, kLanes = knobs.lanes(),
               kElements = knobs.elements(), kGroups = knobs.groups(), kTile = knobs.tile());
  TW_CONSTANTS(bool, kRagged = knobs.ragged);
  static_assert(kPiece == 1 || kPiece * sizeof(T) == 16, "whole accesses");
  static_assert(kBlock % (kLanes * kPiece) == 0 && kThreads % 32 == 0, "whole warps share whole blocks");

  // Ordinary accesses: what is read may be written by this kernel.
  TW_MEMBER static void load(float (&v)[kPiece], const T* x) {
    if constexpr (kPiece == 1) {
      v[0] = to_f32(*x);
    } else {
      const u32x4 q = *reinterpret_cast<const u32x4*>(x);
      const u32 words[4] = {q.x, q.y, q.z, q.w};
      cast::to_floats<T, kPiece>(v, words);
    }
  }
  TW_MEMBER static void store(U* y, const float (&v)[kPiece]) {
    if constexpr (kPiece == 1) {
      *y = from_f32<U>(v[0]);
    } else {
      constexpr int kWords = kPiece * sizeof(U) / 4;
      u32 words[kWords];
      cast::from_floats<U, kPiece>(words, v);
      if constexpr (kWords == 2) {
        *reinterpret_cast<u32x2*>(y) = {words[0], words[1]};
      } else {
        TW_UNROLL for (int i = 0; i < kWords; i += 4)
            store_global16(reinterpret_cast<u32*>(y) + i, {words[i], words[i + 1], words[i + 2], words[i + 3]});
      }
    }
  }

  // Where a thread block's blocks begin. 64-bit divisions take long: there is one.
  struct Start {
    i64 first, left;      // its first block, and how many there are from it on
    i64 row;              // of the first one
    u32 in_row, per_row;  // its place in that row, and the blocks of a row
    TW_MEMBER Start(i64 rows, i64 cols) {
      const i64 blocks = blocks_per_row(cols, kBlock);
      first = static_cast<i64>(block_x()) * kTile;
      left = rows * blocks - first;
      row = kRagged ? first / blocks : 0;
      in_row = static_cast<u32>(first - row * blocks);
      per_row = static_cast<u32>(blocks);
    }
    // The block `index` behind the first; no elements beyond the last one.
    TW_MEMBER Span span(u32 index, i64 cols) const {
      if (index >= left) return {0, 0};
      if constexpr (kRagged) {
        const u32 at = in_row + index, rows = at / per_row;
        return span_of(row + rows, at - rows * per_row, cols, kBlock);
      } else {
        return {(first + index) * kBlock, kBlock};
      }
    }
  };
  // Of a lane's piece i: the first element's place in the block.
  TW_MEMBER static int place(int lane, int i) { return (i * kLanes + lane) * kPiece; }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const Start start(args.rows, shape.cols);
    if (start.left <= 0) return;
    const int group = static_cast<int>(thread_x()) / kLanes, lane = static_cast<int>(thread_x()) % kLanes;
    const T* x = static_cast<const T*>(args.x);
    U* y = static_cast<U*>(args.y);

    constexpr int kPieces = kElements / kPiece;
    float v[kPasses][kPieces][kPiece];
    Span spans[kPasses];
    TW_UNROLL for (int p = 0; p < kPasses; ++p) {
      spans[p] = start.span(static_cast<u32>(p * kGroups + group), shape.cols);
      TW_UNROLL for (int i = 0; i < kPieces; ++i) {
        TW_UNROLL for (int e = 0; e < kPiece; ++e) v[p][i][e] = 0.0f;
        if (place(lane, i) < spans[p].count) load(v[p][i], x + spans[p].first + place(lane, i));
      }
    }
    const Fp4Scales scales(*args.amax);
    TW_UNROLL for (int p = 0; p < kPasses; ++p) {
      fp4_fake_block<kLanes>(v[p], scales);
      TW_UNROLL for (int i = 0; i < kPieces; ++i) {
        if (place(lane, i) < spans[p].count) store(y + spans[p].first + place(lane, i), v[p][i]);
      }
    }
  }
};

}  // namespace tw::fp4_fake_quant
