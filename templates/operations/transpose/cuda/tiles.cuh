// SPDX-License-Identifier: Apache-2.0
// Square tiles through shared memory. A thread has as many rows of a word as a word has elements, and transposes those
// in registers; so both sides of a tile are read and written 128 bytes at a time.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "operations/transpose/params.cuh"

namespace tw::transpose {

// One element of `bytes` bytes, in the lowest bits.
template <int bytes>
TW_DEVICE u32 load_one(const u8* from) {
  if constexpr (bytes == 1) return *from;
  if constexpr (bytes == 2) return *reinterpret_cast<const u16*>(from);
  if constexpr (bytes == 4) return *reinterpret_cast<const u32*>(from);
}
template <int bytes>
TW_DEVICE void store_one(u8* to, u32 v) {
  if constexpr (bytes == 1) *to = static_cast<u8>(v);
  if constexpr (bytes == 2) *reinterpret_cast<u16*>(to) = static_cast<u16>(v);
  if constexpr (bytes == 4) *reinterpret_cast<u32*>(to) = v;
}

// Words of one row each to words of one column each.
TW_DEVICE void transpose_words(u32 (&)[1]) {}
TW_DEVICE void transpose_words(u32 (&w)[2]) {
  const u32 a = w[0], b = w[1];
  w[0] = prmt(a, b, 0x5410u), w[1] = prmt(a, b, 0x7632u);
}
TW_DEVICE void transpose_words(u32 (&w)[4]) {
  const u32 ab = prmt(w[0], w[1], 0x5140u), cd = prmt(w[2], w[3], 0x5140u);  // columns 0 and 1
  const u32 ef = prmt(w[0], w[1], 0x7362u), gh = prmt(w[2], w[3], 0x7362u);  // columns 2 and 3
  w[0] = prmt(ab, cd, 0x5410u), w[1] = prmt(ab, cd, 0x7632u);
  w[2] = prmt(ef, gh, 0x5410u), w[3] = prmt(ef, gh, 0x7632u);
}

// words: rows and columns are whole words, else elements are loaded and stored one by one.
template <int bytes, int warps, bool words>
struct Tiles {
  TW_CONSTANTS(int, kThreads = 32 * warps, kSide = tile_side(bytes), kSharedBytes = tile_bytes(bytes));
  TW_CONSTANTS(int, kOfWord = 4 / bytes, kTurns = 32 / warps);
  static_assert(32 % warps == 0, "warps take a tile's words in turns");

  // The word of a row of `cols` elements that begins at column `at`, zeros beyond.
  TW_MEMBER static u32 load(const u8* row, i64 at, i64 cols) {
    if constexpr (words) return at < cols ? *reinterpret_cast<const u32*>(row + at * bytes) : 0;
    u32 word = 0;
    TW_UNROLL for (int i = 0; i < kOfWord; ++i) if (at + i < cols) word |= load_one<bytes>(row + (at + i) * bytes)
                                                                           << (8 * bytes * i % 32);
    return word;
  }
  TW_MEMBER static void store(u8* row, i64 at, i64 cols, u32 word) {
    if constexpr (words) {
      if (at < cols) *reinterpret_cast<u32*>(row + at * bytes) = word;
    } else {
      TW_UNROLL for (int i = 0; i < kOfWord; ++i) if (at + i < cols)
          store_one<bytes>(row + (at + i) * bytes, word >> (8 * bytes * i % 32));
    }
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    u32* const tile = reinterpret_cast<u32*>(dynamic_shared());
    const i64 across = ceil_div64(shape.cols, kSide);
    const i64 row0 = block_x() / across * kSide, col0 = block_x() % across * kSide;
    const int lane = static_cast<int>(thread_x()) % 32, warp = static_cast<int>(thread_x()) / 32;
    u32 w[kTurns][kOfWord];
    TW_UNROLL for (int t = 0; t < kTurns; ++t) TW_UNROLL for (int i = 0; i < kOfWord; ++i) {
      const i64 row = row0 + (warp + t * warps) * kOfWord + i;
      w[t][i] = row < shape.rows
                    ? load(static_cast<const u8*>(args.x) + row * shape.cols * bytes, col0 + lane * kOfWord, shape.cols)
                    : 0;
    }
    // Column i of a lane's word is at (32 i + lane), its rows side by side.
    TW_UNROLL for (int t = 0; t < kTurns; ++t) {
      transpose_words(w[t]);
      TW_UNROLL for (int i = 0; i < kOfWord; ++i) tile[(32 * i + lane) * 33 + warp + t * warps] = w[t][i];
    }
    sync_block();
    TW_UNROLL for (int t = 0; t < kTurns; ++t) TW_UNROLL for (int i = 0; i < kOfWord; ++i) {
      const int of = warp + t * warps;
      const i64 col = col0 + of * kOfWord + i;
      if (col < shape.cols)
        store(static_cast<u8*>(args.y) + col * shape.rows * bytes, row0 + lane * kOfWord, shape.rows,
              tile[(32 * i + of) * 33 + lane]);
    }
  }
};

// An element for a thread. Slow and plain.
template <int bytes>
struct Reference {
  TW_CONSTANTS(int, kThreads = 128, kSharedBytes = 0);
  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 at = static_cast<i64>(block_x()) * kThreads + thread_x();
    if (at >= shape.rows * shape.cols) return;
    const i64 row = at / shape.cols, col = at % shape.cols;
    const u8* const from = static_cast<const u8*>(args.x) + at * bytes;
    u8* const to = static_cast<u8*>(args.y) + (col * shape.rows + row) * bytes;
    for (int i = 0; i < bytes; ++i) to[i] = from[i];
  }
};

}  // namespace tw::transpose
