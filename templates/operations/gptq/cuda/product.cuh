// SPDX-License-Identifier: Apache-2.0
// Products of tiles in double precision, in the order of quantize/rounding/tiles.h: 64 products at a time are summed,
// fused, from the first to the last, and each such sum is added to what it belongs to.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "operations/gptq/params.cuh"

namespace tw::gptq {

// A tile c[64][64] over a block: a thread has rows 8 (thread / 16) to + 7 and every 16th column. Accesses of a warp to
// a row of shared memory are then to 16 neighbours, or to one place.
struct Product {
  TW_CONSTANTS(int, kRows = 8, kCols = 4, kDepth = 16, kSlice = kDepth * kTile, kLoads = kSlice / kThreads / 2);
  static_assert(4 * kSlice * 8 <= kSharedBytes, "two slices of both operands");

  struct alignas(16) Pair {
    double x, y;
  };
  struct alignas(8) Floats {
    float x, y;
  };
  TW_MEMBER static Pair load(const double* p) { return *reinterpret_cast<const Pair*>(p); }
  TW_MEMBER static Pair load(const float* p) {
    const Floats v = *reinterpret_cast<const Floats*>(p);
    return {static_cast<double>(v.x), static_cast<double>(v.y)};
  }

  double c[kRows][kCols];

  TW_MEMBER static int row(int e) { return static_cast<int>(thread_x()) / 16 * kRows + e; }
  TW_MEMBER static int col(int e) { return static_cast<int>(thread_x()) % 16 + 16 * e; }
  template <class F>
  TW_MEMBER void each(F f) {
    TW_UNROLL for (int i = 0; i < kRows; ++i) TW_UNROLL for (int j = 0; j < kCols; ++j)
        f(c[i][j], row(i) * kTile + col(j));
  }

  // c[i][j] += (or -=) sum over t of a(m)[t][i] b(m)[t][j], for m of from to end - 1 in order. By all threads. Slices
  // of 16 rows are fetched while the ones before are multiplied.
  template <bool minus, class A, class B>
  TW_MEMBER void add(i64 from, i64 end, A a, B b) {
    if (from >= end) return;
    double* const shared = reinterpret_cast<double*>(dynamic_shared());
    Pair left[kLoads], right[kLoads];
    const int at = 2 * static_cast<int>(thread_x());
    const auto fetch = [&](i64 m, int slice) {
      TW_UNROLL for (int i = 0; i < kLoads; ++i) {
        left[i] = load(a(m) + slice * kSlice + i * 2 * kThreads + at);
        right[i] = load(b(m) + slice * kSlice + i * 2 * kThreads + at);
      }
    };
    const auto put = [&](int buffer) {
      TW_UNROLL for (int i = 0; i < kLoads; ++i) {
        double* const to = shared + 2 * kSlice * buffer + i * 2 * kThreads + at;
        *reinterpret_cast<Pair*>(to) = left[i];
        *reinterpret_cast<Pair*>(to + kSlice) = right[i];
      }
    };
    fetch(from, 0);
    put(0);
    sync_block();
    int buffer = 0;
    TW_NO_UNROLL for (i64 m = from; m < end; ++m) {
      double sums[kRows][kCols] = {};
      TW_NO_UNROLL for (int slice = 0; slice < kTile / kDepth; ++slice) {
        const bool last = slice == kTile / kDepth - 1, more = !last || m + 1 < end;
        if (more) fetch(last ? m + 1 : m, last ? 0 : slice + 1);
        const double* const from_a = shared + 2 * kSlice * buffer + row(0);
        const double* const from_b = shared + 2 * kSlice * buffer + kSlice + col(0);
        TW_UNROLL_BY(4) for (int t = 0; t < kDepth; ++t) {
          double x[kRows], y[kCols];
          TW_UNROLL for (int i = 0; i < kRows; i += 2) {
            const Pair two = load(from_a + t * kTile + i);
            x[i] = two.x, x[i + 1] = two.y;
          }
          TW_UNROLL for (int j = 0; j < kCols; ++j) y[j] = from_b[t * kTile + 16 * j];
          TW_UNROLL for (int i = 0; i < kRows; ++i) TW_UNROLL for (int j = 0; j < kCols; ++j) sums[i][j] =
              fma_rn(x[i], y[j], sums[i][j]);
        }
        buffer ^= 1;
        if (more) put(buffer);
        sync_block();
      }
      TW_UNROLL for (int i = 0; i < kRows; ++i) TW_UNROLL for (int j = 0; j < kCols; ++j) c[i][j] =
          minus ? sub_rn(c[i][j], sums[i][j]) : add_rn(c[i][j], sums[i][j]);
    }
  }
};

}  // namespace tw::gptq
