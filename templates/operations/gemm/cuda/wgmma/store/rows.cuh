// SPDX-License-Identifier: Apache-2.0
// Rows of y and c in shared memory between a warpgroup's accumulators and global memory, so that y is written and c
// read sixteen bytes at a time.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/wgmma/store/staging.cuh"

namespace tw::gemm {

// ROWS rows of 64 elements of y or c in shared memory, filled and emptied by THREADS threads: sixteen bytes at a time,
// or element by element if the matrix' rows are not aligned to sixteen bytes.
template <class T, int ROWS, int THREADS>
struct Rows {
  TW_CONSTANTS(int, kRowBytes = 64 * static_cast<int>(sizeof(T)), kPieces = kRowBytes / 16, kElements = 64 / kPieces);
  TW_CONSTANTS(int, kBytes = ROWS * kRowBytes);

  // visit(row, piece) for a thread's share of the 16-byte pieces.
  template <class Visit>
  TW_MEMBER static void pieces(int thread, const Visit& visit) {
    TW_UNROLL for (int i = 0; i < ceil_div(ROWS * kPieces, THREADS); ++i) {
      const int at = i * THREADS + thread % THREADS;
      if (ROWS * kPieces % THREADS == 0 || at < ROWS * kPieces) visit(at / kPieces, at % kPieces);
    }
  }
  // visit(row, element), not unrolled: it is rarely needed.
  template <class Visit>
  TW_MEMBER static void elements(int thread, const Visit& visit) {
    TW_NO_UNROLL for (int at = thread % THREADS; at < ROWS * 64; at += THREADS) visit(at / 64, at % 64);
  }
  // Of sixteen one-byte elements, the two halves are interleaved.
  TW_MEMBER static u32x4 piece(const u8* rows, int row, int at) {
    const u32x4 q = *reinterpret_cast<const u32x4*>(rows + swizzled<kRowBytes>(row, at));
    if constexpr (sizeof(T) == 1)
      return {prmt(q.x, q.y, 0x6420u), prmt(q.z, q.w, 0x6420u), prmt(q.x, q.y, 0x7531u), prmt(q.z, q.w, 0x7531u)};
    else
      return q;
  }
  template <class Bytes>
  TW_MEMBER static auto element(Bytes* rows, int row, int at) {
    const int i = at % kElements, place = sizeof(T) == 1 ? i % 8 * 2 + i / 8 : i;
    return reinterpret_cast<select<same<Bytes, u8>(), T, const T>*>(rows + swizzled<kRowBytes>(row, at / kElements)) +
           place;
  }
  // To row m0, column n0 of y, m by n, whose rows are ldy elements apart. Rows and columns before first_m and first_n
  // are another tile's.
  TW_MEMBER static void store(const u8* rows, void* y, i64 ldy, i64 m0, i64 n0, i64 first_m, i64 first_n, i64 m, i64 n,
                              int thread) {
    T* to = static_cast<T*>(y) + m0 * ldy + n0;
    const i64 above = first_m - m0, below = m - m0, left = first_n - n0, right = n - n0;
    if ((ldy | n) % kElements == 0) {
      pieces(thread, [&](int row, int at) {
        if (row >= above && row < below && at * kElements >= left && at * kElements < right)
          store_global16(to + row * ldy + at * kElements, piece(rows, row, at));
      });
    } else {
      elements(thread, [&](int row, int at) {
        if (row >= above && row < below && at >= left && at < right) to[row * ldy + at] = *element(rows, row, at);
      });
    }
  }
  // To the rows of y that `tile` finds for its rows from row0 on; columns as above.
  template <class Tile>
  TW_MEMBER static void store_to(const u8* rows, void* y, i64 ldy, const Tile& tile, int row0, i64 n0, i64 first_n,
                                 i64 n, int thread) {
    T* to = static_cast<T*>(y) + n0;
    const i64 left = first_n - n0, right = n - n0;
    if ((ldy | n) % kElements == 0) {
      pieces(thread, [&](int row, int at) {
        const i64 m = tile.row(row0 + row);
        if (m >= 0 && at * kElements >= left && at * kElements < right)
          store_global16(to + m * ldy + at * kElements, piece(rows, row, at));
      });
    } else {
      elements(thread, [&](int row, int at) {
        const i64 m = tile.row(row0 + row);
        if (m >= 0 && at >= left && at < right) to[m * ldy + at] = *element(rows, row, at);
      });
    }
  }
  template <class Tile>
  TW_MEMBER static void fetch_from(u8* rows, const void* c, i64 ldc, const Tile& tile, int row0, i64 n0, i64 n,
                                   int thread) {
    const T* from = static_cast<const T*>(c);
    if (ldc % kElements == 0) {
      pieces(thread, [&](int row, int at) {
        const i64 m = tile.row(row0 + row);
        const bool inside = m >= 0 && n0 + at * kElements < n;
        cp_async<16>(rows + swizzled<kRowBytes>(row, at), from + (inside ? m * ldc + n0 + at * kElements : 0),
                     inside ? 16 : 0);
      });
      cp_async_commit();
    } else {
      elements(thread, [&](int row, int at) {
        const i64 m = tile.row(row0 + row);
        *element(rows, row, at) = m >= 0 && n0 + at < n ? from[m * ldc + n0 + at] : T{};
      });
    }
  }
  // The reverse, asynchronously; elements beyond the matrix become zero. n is whole pieces.
  TW_MEMBER static void fetch(u8* rows, const void* c, i64 ldc, i64 m0, i64 n0, i64 m, i64 n, int thread) {
    const T* from = static_cast<const T*>(c);
    if (ldc % kElements == 0) {
      pieces(thread, [&](int row, int at) {
        const bool inside = m0 + row < m && n0 + at * kElements < n;
        cp_async<16>(rows + swizzled<kRowBytes>(row, at), from + (inside ? (m0 + row) * ldc + n0 + at * kElements : 0),
                     inside ? 16 : 0);
      });
      cp_async_commit();
    } else {
      elements(thread, [&](int row, int at) {
        *element(rows, row, at) = m0 + row < m && n0 + at < n ? from[(m0 + row) * ldc + n0 + at] : T{};
      });
    }
  }
};

// TOKENS tokens of a strip, transposed from the accumulators of the matrix instruction: in block b of eight tokens, for
// row half h and e, thread t has token 8 b + 2 (t % 4) + e and element 16 (t / 32) + 8 h + t % 32 / 4.
template <class T, int TOKENS>
struct Chunk : Rows<T, TOKENS, 128> {
  TW_CONSTANTS(int, kRowBytes = Rows<T, TOKENS, 128>::kRowBytes);
  // Fragments of blocks b to b + B - 1.
  template <int B, class Value>
  TW_MEMBER static void put(u8* chunk, int b, const Value (&v)[B][2][2], int thread) {
    const int lane = thread % 32, warp = thread % 128 / 32;
    if constexpr (sizeof(T) == 1) {
      u32 bits[B];
      TW_UNROLL for (int i = 0; i < B; ++i) bits[i] =
          pack2<T>(v[i][0][0], v[i][1][0]) | (pack2<T>(v[i][0][1], v[i][1][1]) << 16);
      stmatrix_transposed(chunk + swizzled<kRowBytes>((8 * b + lane) % TOKENS, warp), bits);
    } else if constexpr (sizeof(T) == 2) {
      u32 bits[2 * B];
      TW_UNROLL for (int i = 0; i < 2 * B; ++i) bits[i] = pack2<T>(v[i / 2][i % 2][0], v[i / 2][i % 2][1]);
      stmatrix_transposed(chunk + matrix_row(b, lane, warp), bits);
    } else {
      each<B>(b, lane, warp,
              [&](int i, int h, int e, int at) { *reinterpret_cast<u32*>(chunk + at) = bits_as<u32>(v[i][h][e]); });
    }
  }
  template <int B>
  TW_MEMBER static void take(const u8* chunk, int b, float (&v)[B][2][2], int thread) {
    static_assert(sizeof(T) >= 2, "c has no one-byte elements");
    const int lane = thread % 32, warp = thread % 128 / 32;
    if constexpr (sizeof(T) == 2) {
      constexpr int kAtOnce = B == 1 ? 1 : 2;
      TW_UNROLL for (int i = 0; i < B; i += kAtOnce) {
        u32 bits[2 * kAtOnce];
        ldmatrix_transposed(bits, chunk + matrix_row(b + i, lane, warp));
        TW_UNROLL for (int q = 0; q < 2 * kAtOnce; ++q) v[i + q / 2][q % 2][0] = low_half<T>(bits[q]),
                                                                         v[i + q / 2][q % 2][1] = high_half<T>(bits[q]);
      }
    } else {
      each<B>(b, lane, warp,
              [&](int i, int h, int e, int at) { v[i][h][e] = *reinterpret_cast<const float*>(chunk + at); });
    }
  }

 private:
  // The row that a lane passes for the matrices (block, half) (b, 0), (b, 1), (b + 1, 0), (b + 1, 1).
  TW_MEMBER static int matrix_row(int b, int lane, int warp) {
    return swizzled<kRowBytes>((8 * (b + lane / 16) + lane % 8) % TOKENS, 2 * warp + lane / 8 % 2);
  }
  template <int B, class Visit>
  TW_MEMBER static void each(int b, int lane, int warp, const Visit& visit) {
    TW_UNROLL for (int i = 0; i < B; ++i) TW_UNROLL for (int h = 0; h < 2; ++h) TW_UNROLL for (int e = 0; e < 2; ++e)
        visit(i, h, e,
              swizzled<kRowBytes>(8 * (b + i) + 2 * (lane % 4) + e, 4 * warp + 2 * h + lane / 16) + lane / 4 % 4 * 4);
  }
};

// A warpgroup's staging memory: a tile is stored in chunks of tokens, which alternate between two buffers. c is fetched
// into the same buffers, in y's place if its elements are as large.
template <class Epi, int kColumns>
struct TileStaging {
  using Y = typename Epi::Out;
  using C = select<Epi::kC, typename Epi::Residual, Y>;
  TW_CONSTANTS(int, kYBytes = sizeof(Y), kCBytes = Epi::kC ? sizeof(C) : 0);
  TW_CONSTANTS(int, kTokens = staging_tokens(kColumns, kYBytes, kCBytes));
  TW_CONSTANTS(int, kBlocks = min2(kTokens / 8, 4 / static_cast<int>(sizeof(Y))));  // of tokens put at a time
  using Result = Chunk<Y, kTokens>;
  using Addend = Chunk<C, kTokens>;
  TW_CONSTANTS(int, kAddendAt = sizeof(C) == sizeof(Y) ? 0 : Result::kBytes);
  TW_CONSTANTS(int, kBytes = staging_bytes(kColumns, kYBytes, kCBytes), kBuffer = kBytes / 2);
};

// A warp's staging memory where the operands are swapped: sixteen rows of 64 elements. Four-byte elements are stored
// straight from registers; c is fetched as above.
template <class Epi>
struct SwappedStaging {
  using Y = typename Epi::Out;
  using C = select<Epi::kC, typename Epi::Residual, Y>;
  using Result = Rows<Y, 16, 32>;
  using Addend = Rows<C, 16, 32>;
  TW_CONSTANTS(int, kBlocks = 4 / static_cast<int>(sizeof(Y)));  // of eight columns that are put at a time
  TW_CONSTANTS(int, kResult = sizeof(Y) == 4 ? 0 : Result::kBytes, kAddendAt = sizeof(C) == sizeof(Y) ? 0 : kResult);
  TW_CONSTANTS(int, kBytes = swapped_staging_bytes(sizeof(Y), Epi::kC ? sizeof(C) : 0),
               kBuffer = kBytes / (Epi::kC ? 2 : 1));

  template <class Value>
  TW_MEMBER static void put(u8* rows, int b, const Value (&v)[kBlocks][2][2], int lane) {
    u32 bits[4];
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const int h = i % 2;
      if constexpr (sizeof(Y) == 2)
        bits[i] = pack2<Y>(v[i / 2][h][0], v[i / 2][h][1]);
      else
        bits[i] = pack2<Y>(v[i / 2 * 2][h][0], v[i / 2 * 2 + 1][h][0]) |
                  (pack2<Y>(v[i / 2 * 2][h][1], v[i / 2 * 2 + 1][h][1]) << 16);
    }
    stmatrix_x4(rows + swizzled<Result::kRowBytes>(lane % 16, 2 * b / kBlocks + lane / 16), bits);
  }
  TW_MEMBER static void take(const u8* rows, int b, float (&v)[kBlocks][2][2], int lane) {
    if constexpr (sizeof(C) == 2) {
      // Each lane passes the row that it passes to put(), which may overwrite it.
      constexpr int kAtOnce = min2(2, kBlocks);
      TW_UNROLL for (int i = 0; i < kBlocks; i += kAtOnce) {
        u32 bits[2 * kAtOnce];
        const u8* row = rows + swizzled<Addend::kRowBytes>(lane % 16, b + i + lane / 16 % kAtOnce);
        if constexpr (kAtOnce == 2)
          ldmatrix_x4(bits, row);
        else
          ldmatrix_x2(bits, row);
        TW_UNROLL for (int q = 0; q < 2 * kAtOnce; ++q) v[i + q / 2][q % 2][0] = low_half<C>(bits[q]),
                                                                         v[i + q / 2][q % 2][1] = high_half<C>(bits[q]);
      }
    } else {
      TW_UNROLL for (int i = 0; i < kBlocks; ++i) TW_UNROLL for (int h = 0; h < 2; ++h) {
        const u8* pair =
            rows + swizzled<Addend::kRowBytes>(lane / 4 + 8 * h, 2 * (b + i) + lane % 4 / 2) + lane % 2 * 8;
        v[i][h][0] = reinterpret_cast<const float*>(pair)[0], v[i][h][1] = reinterpret_cast<const float*>(pair)[1];
      }
    }
  }
};

}  // namespace tw::gemm
