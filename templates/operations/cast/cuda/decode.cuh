// SPDX-License-Identifier: Apache-2.0
// Any format to plain floats. The encoded bytes come into shared memory with 16-byte loads, whatever a block's size is;
// each thread decodes 16 bytes' worth of neighbouring elements with the format's scalar decoder and stores them at
// once.
#pragma once
#include "backends/cuda/runs.cuh"
#include "formats/shared/format.cuh"
#include "operations/cast/params.cuh"

namespace tw::cast {

template <class X, class Y, int threads, int passes>
struct Decode {
  using T = typename Y::Element;
  TW_CONSTANTS(int, kThreads = threads);
  TW_CONSTANTS(int, kElements = 16 / sizeof(T));  // per thread and pass
  TW_CONSTANTS(int, kTile = threads * kElements * passes);
  TW_CONSTANTS(int, kBlocks = kTile / X::kBlock);
  TW_CONSTANTS(int, kData = kBlocks * X::kDataBytes, kScales = kBlocks * X::kScaleBytes);
  TW_CONSTANTS(int, kSharedBytes = kData + kScales);
  static_assert(kTile % X::kBlock == 0 && kData % 16 == 0 && kScales % 16 == 0, "aligned tiles");

  // Scales of the rows that a tile crosses: a thread's elements belong to one row, or to several if rows are short.
  struct RowScales {
    const fmt::row_item<X>* scales;
    u32 col, cols;  // of the thread's first element
    TW_MEMBER RowScales(const Args& args, const Shape& shape, i64 first_row, u32 col_in_first) {
      cols = static_cast<u32>(shape.cols);
      col = col_in_first % cols;
      scales = static_cast<const fmt::row_item<X>*>(args.x.scales) + first_row + col_in_first / cols;
    }
    TW_MEMBER fmt::row_item<X> next() {
      const fmt::row_item<X> item = *scales;
      if (++col == cols) col = 0, ++scales;
      return item;
    }
  };

  TW_MEMBER static void decode(float (&v)[kElements], const u8* shared, int at, float context) {
    const int block = at / X::kBlock, within = at % X::kBlock;
    TW_UNROLL for (int i = 0; i < kElements; ++i) {
      const int b = X::kBlock > 1 ? block : block + i;
      v[i] = X::decode(shared + b * X::kDataBytes, shared + kData + b * X::kScaleBytes, context,
                       X::kBlock > 1 ? within + i : 0);
    }
  }
  TW_MEMBER static void decode_rows(float (&v)[kElements], const u8* shared, int at, int count, RowScales row) {
    const bool one_row = row.col + kElements <= row.cols;
    fmt::row_item<X> context = *row.scales;
    TW_UNROLL for (int i = 0; i < kElements; ++i) {
      if (!one_row && i < count) context = row.next();
      v[i] = X::decode(shared + (at + i) / X::kBlock * X::kDataBytes, nullptr, context, (at + i) % X::kBlock);
    }
  }

  TW_MEMBER static void store(u8* y, const float (&v)[kElements], i64 count) {
    u32 words[4];
    from_floats<T, kElements>(words, v);
    if (X::kBlock >= kElements || count >= kElements) {
      store_global16(y, {words[0], words[1], words[2], words[3]});
    } else if constexpr (X::kBlock < kElements) {
      TW_UNROLL for (int i = 0; i < kElements; ++i) {
        if (i >= count) continue;
        if constexpr (sizeof(T) == 4)
          reinterpret_cast<u32*>(y)[i] = words[i];
        else
          reinterpret_cast<u16*>(y)[i] = static_cast<u16>(words[i / 2] >> (16 * (i % 2)));
      }
    }
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 start = static_cast<i64>(block_x()) * kTile;
    const i64 left = args.rows * shape.cols - start;
    if (left <= 0) return;
    begin_in_turn();
    const int thread = static_cast<int>(thread_x());
    u8* shared = dynamic_shared();
    const i64 first = start / X::kBlock;
    const int blocks = static_cast<int>(min2(left, static_cast<i64>(kTile)) / X::kBlock);
    tile_to_shared<threads, kData>(shared, static_cast<const u8*>(args.x.data) + first * X::kDataBytes,
                                   blocks * X::kDataBytes);
    if constexpr (kScales > 0)
      tile_to_shared<threads, kScales>(shared + kData, static_cast<const u8*>(args.x.scales) + first * X::kScaleBytes,
                                       blocks * X::kScaleBytes);
    const float context = tensor_scale<X>(args.x.global);
    const i64 first_row = X::kRowScale ? start / shape.cols : 0;
    const u32 first_col = static_cast<u32>(start - first_row * shape.cols);
    sync_block();

    TW_UNROLL for (int p = 0; p < passes; ++p) {
      const int at = (p * threads + thread) * kElements;
      if (at >= left) continue;
      float v[kElements];
      if constexpr (X::kRowScale)
        decode_rows(v, shared, at, static_cast<int>(min2(left - at, static_cast<i64>(kElements))),
                    RowScales(args, shape, first_row, first_col + static_cast<u32>(at)));
      else
        decode(v, shared, at, context);
      store(static_cast<u8*>(args.y.data) + (start + at) * sizeof(T), v, left - at);
    }
  }
};

}  // namespace tw::cast
