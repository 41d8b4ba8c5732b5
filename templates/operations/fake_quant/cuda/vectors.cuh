// SPDX-License-Identifier: Apache-2.0
// Pieces of 16 bytes, or single elements where rows that have scales of their own are no multiple of that. Blocks take
// tiles of pieces in turns, in the order of their numbers, or whole rows where each row's scale has a gradient. Sums of
// gradients are double precision's, over sums of a piece; each is made in one order whatever the schedule is, so that
// every run gives the same bits. A thread writes what it read itself, so y may be x or dy.
#pragma once
#include "backends/cuda/atomic.cuh"
#include "backends/cuda/runs.cuh"
#include "formats/shared/format.cuh"
#include "operations/fake_quant/cuda/plan.cuh"
#include "operations/fake_quant/params.cuh"

namespace tw::fake_quant {

template <class X, const Knobs& knobs, Grad grad>
struct Vectors {
  using T = typename X::Element;
  TW_CONSTANTS(int, kThreads = knobs.threads, kLoads = knobs.loads, kTile = knobs.tile(), kPiece = knobs.piece);
  TW_CONSTANTS(int, kBytes = kPiece * static_cast<int>(sizeof(T)), kWords = kBytes < 4 ? 1 : kBytes / 4);
  TW_CONSTANTS(bool, kByRow = knobs.by_row, kLearned = knobs.learned, kBackward = grad != Grad::none);
  TW_CONSTANTS(int, kSharedBytes = kLearned ? 264 : 0);  // a double of each warp, and a word
  static_assert(kPiece == 1 || kBytes == 16, "whole accesses");
  static_assert(kThreads % 32 == 0 && kThreads <= 1024 && kLearned == (grad == Grad::learned), "knobs");

  // Ordinary accesses: what is read may be written by this kernel.
  TW_MEMBER static void load(float (&v)[kPiece], const u8* p) {
    if constexpr (kPiece == 1) {
      v[0] = to_f32(*reinterpret_cast<const T*>(p));
    } else {
      const u32x4 q = *reinterpret_cast<const u32x4*>(p);
      const u32 words[4] = {q.x, q.y, q.z, q.w};
      cast::to_floats<T, kPiece>(v, words);
    }
  }
  TW_MEMBER static void store(u8* p, const float (&v)[kPiece]) {
    if constexpr (kPiece == 1) {
      *reinterpret_cast<T*>(p) = from_f32<T>(v[0]);
    } else {
      u32 words[4];
      cast::from_floats<T, kPiece>(words, v);
      store_global16(p, {words[0], words[1], words[2], words[3]});
    }
  }
  // What becomes of an element; adds to the gradient of its scale.
  TW_MEMBER static float one(const Codes& codes, float x, float dy, float& sum) {
    if constexpr (!kBackward) {
      return codes.value(x);
    } else {
      if constexpr (kLearned) sum = add_rn(sum, mul_rn(dy, codes.slope(x)));
      return codes.gradient(x, dy);
    }
  }

  // Pieces first + thread, first + thread + threads, ... before `end`; returns what this thread's add to the sum.
  TW_MEMBER static double tile(const Args& args, const Shape& shape, const Codes& tensor, i64 first, i64 end) {
    const i64 start = first + thread_x();
    float x[kLoads][kPiece], dy[kLoads][kPiece];
    double sum = 0;
    TW_UNROLL for (int i = 0; i < kLoads; ++i) {
      TW_UNROLL for (int e = 0; e < kPiece; ++e) x[i][e] = dy[i][e] = 0.0f;
      const i64 at = start + i * kThreads;
      if (at >= end) continue;
      load(x[i], args.x + at * kBytes);
      if constexpr (kBackward) load(dy[i], args.dy + at * kBytes);
    }
    TW_UNROLL for (int i = 0; i < kLoads; ++i) {
      const i64 at = start + i * kThreads;
      if (at >= end) continue;
      const Codes codes = kByRow && !kLearned ? codes_of(args, shape, row_of(at, shape)) : tensor;
      float terms = 0.0f;
      TW_UNROLL for (int e = 0; e < kPiece; ++e) x[i][e] = one(codes, x[i][e], dy[i][e], terms);
      store(args.y + at * kBytes, x[i]);
      if constexpr (kLearned) sum += static_cast<double>(terms);
    }
    return sum;
  }
  // 64-bit divisions take long.
  TW_MEMBER static i64 row_of(i64 piece, const Shape& shape) {
    const i64 per_row = shape.cols / kPiece;
    if (piece <= 0xffffffffll && per_row <= 0xffffffffll)
      return static_cast<i64>(static_cast<u32>(piece) / static_cast<u32>(per_row));
    return piece / per_row;
  }
  // Behind the last whole piece of the tensor, fewer elements than it has.
  TW_MEMBER static double tail(const Args& args, const Codes& codes, i64 pieces, i64 elements) {
    float sum = 0.0f;
    const i64 at = (pieces * kPiece + thread_x()) * static_cast<i64>(sizeof(T));
    if (block_x() != 0 || pieces * kPiece + thread_x() >= elements) return 0;
    const float x = to_f32(*reinterpret_cast<const T*>(args.x + at));
    const float dy = kBackward ? to_f32(*reinterpret_cast<const T*>(args.dy + at)) : 0.0f;
    *reinterpret_cast<T*>(args.y + at) = from_f32<T>(one(codes, x, dy, sum));
    return sum;
  }

  // For thread 0 the sum of a block's, lane by lane and then warp by warp.
  TW_MEMBER static double sum_block(double v) {
    double* const warps = reinterpret_cast<double*>(dynamic_shared());
    TW_UNROLL for (int mask = 16; mask > 0; mask /= 2) {
      const u64 bits = bits_as<u64>(v);
      const u64 other = static_cast<u64>(shuffle_xor(static_cast<u32>(bits >> 32), mask)) << 32 |
                        shuffle_xor(static_cast<u32>(bits), mask);
      v += bits_as<double>(other);
    }
    sync_block();  // an earlier sum has been read
    if (thread_x() % 32 == 0) warps[thread_x() / 32] = v;
    sync_block();
    if (thread_x() != 0) return 0;
    for (int i = 1; i < kThreads / 32; ++i) v += warps[i];
    return v;
  }
  TW_MEMBER static float gradient(double sum, float factor) {
    return static_cast<float>(sum * static_cast<double>(factor));
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 elements = args.rows * shape.cols;
    if constexpr (kLearned && kByRow) {
      const i64 per_row = shape.cols / kPiece;
      TW_NO_UNROLL for (i64 row = block_x(); row < args.rows; row += grid_x()) {
        const Codes codes = codes_of(args, shape, row);
        const i64 end = (row + 1) * per_row;
        double sum = 0;
        TW_NO_UNROLL for (i64 first = row * per_row; first < end; first += kTile) sum +=
            tile(args, shape, codes, first, end);
        sum = sum_block(sum);
        if (thread_x() == 0) args.dscale[row] = gradient(sum, args.factor);
      }
    } else {
      const i64 pieces = elements / kPiece;
      // A scale of each row is read where its elements are.
      const Codes codes = codes_of(args, shape, 0);
      // Blocks beyond those that have room for a sum do nothing.
      const i64 blocks = kLearned ? min2(grid_x(), most_blocks()) : grid_x();
      double sum = 0;
      if (block_x() < blocks) {
        TW_NO_UNROLL for (i64 first = static_cast<i64>(block_x()) * kTile; first < pieces; first += blocks * kTile)
            sum += tile(args, shape, codes, first, pieces);
        sum += tail(args, codes, pieces, elements);
      }
      if constexpr (kLearned) sum_blocks(args, sum, static_cast<int>(blocks));
    }
  }

  TW_MEMBER static void sum_blocks(const Args& args, double sum, int blocks) {
    double* const sums = reinterpret_cast<double*>(args.workspace + 2);
    u32* const last = reinterpret_cast<u32*>(dynamic_shared() + 256);
    sum = sum_block(sum);
    if (thread_x() == 0 && block_x() < static_cast<u32>(blocks)) sums[block_x()] = sum;
    const bool here = ends_last(args.workspace);
    if (thread_x() == 0) *last = here;
    sync_block();
    if (!*last) return;
    sum = 0;
    TW_NO_UNROLL for (int i = static_cast<int>(thread_x()); i < blocks; i += kThreads) sum += sums[i];
    sum = sum_block(sum);
    if (thread_x() == 0) *args.dscale = gradient(sum, args.factor);
  }
};

}  // namespace tw::fake_quant
