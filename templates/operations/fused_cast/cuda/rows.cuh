// SPDX-License-Identifier: Apache-2.0
// Rows in registers. `row_threads` threads share a row: each reads its pieces once, with 16-byte accesses that lie side
// by side, keeps what comes of them in single precision, and meets the row's other threads for the sum of squares and,
// where y has a scale for each row, for its largest magnitude. Of rows that are longer than the held pieces the rest is
// read again, from L2 as a rule. With `ahead` a block loops over rows and reads the next ones while it encodes, else it
// has its rows alone. Where a row's elements need nothing of each other, a block takes a part of each of its rows.
//
// Codes of rows, plain elements and blocks of one piece go to memory as they are made. Larger blocks are encoded by
// neighbouring lanes, in shared memory of their warp, which then copies them with whole accesses.
#pragma once
#include "formats/shared/row_scale.cuh"
#include "operations/cast/cuda/row_group.cuh"
#include "operations/fused_cast/cuda/function.cuh"

namespace tw::fused_cast {

template <class X, class Y, class Bias, class Weight, const Knobs& knobs>
struct Rows {
  using F = Function<X, Bias, Weight, knobs>;
  using Group = cast::RowGroup<knobs.row_threads, knobs.block_rows>;
  using Extent = fmt::Extent<Y>;
  using Item = fmt::row_item<Y>;
  TW_CONSTANTS(int, P = knobs.piece, kHeld = knobs.held, kThreads = knobs.threads(), kStep = knobs.step());
  TW_CONSTANTS(bool, kWholeRow = knobs.norm || Y::kRowScale, kZeroPoint = fmt::has_zero_point<Y>(),
               kStaged = !Y::kRowScale && shares_blocks(knobs, Y::kBlock));
  TW_CONSTANTS(int, kLanes = Y::kBlock > P ? Y::kBlock / P : 1);  // of one block
  TW_CONSTANTS(int, kWarpBlocks = kStaged ? warp_blocks(knobs, Y::kBlock) : 0);
  TW_CONSTANTS(int, kData = whole_vectors(kWarpBlocks * Y::kDataBytes));
  TW_CONSTANTS(int, kStaging = kStaged ? staging_bytes(knobs, Y::kBlock, Y::kDataBytes, Y::kScaleBytes) : 0);
  TW_CONSTANTS(int, kExchanged = whole_vectors(Group::shared_bytes(exchanged_words(knobs, Y::kRowScale, kZeroPoint))));
  TW_CONSTANTS(int, kSharedBytes = kExchanged + kThreads / 32 * kStaging);
  TW_CONSTANTS(int, kScaleWord = knobs.norm ? 1 : 0);  // the first word exchanged for the scale
  static_assert(P % Y::kBlock == 0 || Y::kBlock % P == 0, "a piece is whole blocks, or a block whole pieces");
  static_assert(!fmt::OfMean<Y>::value && !(Y::kRowScale && Y::kBlock > P), "codes that a thread can make");

  // The first `count` items of `bytes` each, by a warp. Where they go is aligned as a run of such items is.
  template <int bytes, int most>
  TW_MEMBER static void copy_items(u8* to, const u8* from, int count, int lane) {
    constexpr int kUnit = fmt::run_alignment(bytes);
    TW_UNROLL for (int i = 0; i < ceil_div(most * bytes, 32 * kUnit); ++i) {
      const int at = (32 * i + lane) * kUnit;
      if (at >= count * bytes) continue;
      if constexpr (kUnit == 16)
        store_global16(to + at, cast::read_shared16(from + at));
      else if constexpr (kUnit == 8)
        *reinterpret_cast<u32x2*>(to + at) = *reinterpret_cast<const u32x2*>(from + at);
      else if constexpr (kUnit == 4)
        *reinterpret_cast<u32*>(to + at) = *reinterpret_cast<const u32*>(from + at);
      else if constexpr (kUnit == 2)
        *reinterpret_cast<u16*>(to + at) = *reinterpret_cast<const u16*>(from + at);
      else
        to[at] = from[at];
    }
  }
  // Elements of blocks from column `at` on, which may lie behind the row's end, as all of a block's then do.
  TW_MEMBER static void put_blocks(const float (&v)[P], const Args& args, const Shape& shape, i64 row, u32 at,
                                   float context) {
    const int lane = static_cast<int>(thread_x()) % 32;
    u8* const data = dynamic_shared() + kExchanged + static_cast<int>(thread_x()) / 32 * kStaging;
    u8* const scales = data + kData;
    const int block = lane * P / Y::kBlock;
    Y::template encode_lanes<P>(v, lane % kLanes, data + block * Y::kDataBytes, scales + block * Y::kScaleBytes,
                                context, shape.encoder);
    sync_warp();
    const u32 start = at - static_cast<u32>(lane * P);
    const i64 first = (row * shape.cols + start) / Y::kBlock;
    const int count =
        static_cast<int>(min2((static_cast<u32>(shape.cols) - start) / Y::kBlock, static_cast<u32>(kWarpBlocks)));
    copy_items<Y::kDataBytes, kWarpBlocks>(static_cast<u8*>(args.y.data) + first * Y::kDataBytes, data, count, lane);
    if constexpr (Y::kScaleBytes > 0)
      copy_items<Y::kScaleBytes, kWarpBlocks>(static_cast<u8*>(args.y.scales) + first * Y::kScaleBytes, scales, count,
                                              lane);
    sync_warp();
  }
  // Elements without a scale of their own, or whole blocks.
  TW_MEMBER static void put_elements(const float (&v)[P], const Args& args, const Shape& shape, i64 row, u32 at,
                                     float context) {
    const i64 first = (row * shape.cols + at) / Y::kBlock;
    u8* const y = static_cast<u8*>(args.y.data) + first * Y::kDataBytes;
    u8* const scales = static_cast<u8*>(args.y.scales) + first * Y::kScaleBytes;
    if constexpr (P == 1)
      Y::encode(v, y, scales, context, shape.encoder);
    else
      Y::template encode_lanes<P>(v, 0, y, scales, context, shape.encoder);
  }
  // Codes under a row's scale.
  TW_MEMBER static void put_codes(const float (&v)[P], const Args& args, const Shape& shape, i64 row, u32 at,
                                  const Divider& by, Item& item) {
    u8* const y = static_cast<u8*>(args.y.data) + (row * shape.cols + at) / Y::kBlock;
    if constexpr (P == 1) {
      Y::encode(v, y, nullptr, item, shape.encoder);
      if constexpr (kZeroPoint) item.sum += static_cast<i8>(*y);
    } else if constexpr (Y::kBlock == 1) {
      u32 codes[P / 4];
      TW_UNROLL for (int i = 0; i < P; i += 4) {
        const float four[4] = {v[i], v[i + 1], v[i + 2], v[i + 3]};
        codes[i / 4] = by.direct ? fmt::row_codes<Y, true>(four, by, item) : fmt::row_codes<Y, false>(four, by, item);
        if constexpr (kZeroPoint) item.sum = dp4a(codes[i / 4], 0x01010101u, item.sum);
      }
      *reinterpret_cast<u32x2*>(y) = {codes[0], codes[1]};
    } else {
      TW_UNROLL for (int i = 0; i < P / Y::kBlock; ++i)
          Y::encode(v + i * Y::kBlock, y + i, nullptr, item, shape.encoder);
    }
  }

  TW_MEMBER static void add_squares(float& sum, const float (&v)[P]) {
    TW_UNROLL for (int i = 0; i < P; ++i) sum = fma_rn(v[i], v[i], sum);
  }
  TW_MEMBER static void add(Extent& extent, const float (&v)[P]) {
    TW_UNROLL for (int i = 0; i < P; ++i) extent.add(v[i]);
  }
  // Elements behind the held ones, up to finish(). `seen`: begin() was called for them before.
  template <bool seen>
  TW_MEMBER static void rest(float (&v)[P], float inverse_rms, const Args& args, i64 cols, i64 row, u32 at) {
    if constexpr (seen)
      F::again(v, args, cols, row, at);
    else
      F::first(v, args, cols, row, at);
    F::finish(v, inverse_rms, args, at);
  }

  // What a thread has of a tile: a piece at each step from column `at` on, up to `end`. Beyond the last row there are
  // no columns: its threads still meet at barriers.
  struct Place {
    i64 row;
    u32 at, end;
    TW_MEMBER Place(const Args& args, i64 cols, i64 tile) {
      const int in_block = static_cast<int>(thread_x()) / knobs.row_threads,
                thread = static_cast<int>(thread_x()) % knobs.row_threads;
      i64 rows = tile;
      u32 start = 0;  // column of this block's part of its rows
      if constexpr (!kWholeRow) {
        const i64 parts = ceil_div64(cols, knobs.span());
        rows = tile / parts;
        start = static_cast<u32>(tile - rows * parts) * knobs.span();
      }
      row = rows * knobs.block_rows + in_block;
      at = start + static_cast<u32>(thread * P);
      end = row < args.rows ? static_cast<u32>(cols) : 0;
    }
  };
  TW_MEMBER static void load(typename F::Raw (&raw)[kHeld], const Args& args, i64 cols, const Place& place) {
    TW_UNROLL for (int i = 0; i < kHeld; ++i) if (place.at + i * kStep < place.end)
        F::load(raw[i], args, cols, place.row, place.at + i * kStep);
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 cols = shape.cols;
    i64 tile = block_x();
    cast::begin_in_turn();
    typename F::Raw raw[kHeld] = {};
    load(raw, args, cols, Place(args, cols, tile));
    if constexpr (knobs.ahead) {
      const i64 tiles = ceil_div64(args.rows, knobs.block_rows);
      TW_NO_UNROLL for (;;) {
        const i64 next = tile + grid_x();
        of_tile(raw, args, shape, tile, next);
        if (next >= tiles) break;
        tile = next;
        sync_block();  // the words that warps exchange are read
      }
    } else {
      of_tile(raw, args, shape, tile, tile);
    }
  }

  // raw: of the tile; with knobs.ahead those of `next` take their place as soon as they are not needed any more.
  TW_MEMBER static void of_tile(typename F::Raw (&raw)[kHeld], const Args& args, const Shape& shape, i64 tile,
                                i64 next) {
    const int in_block = static_cast<int>(thread_x()) / knobs.row_threads,
              thread = static_cast<int>(thread_x()) % knobs.row_threads;
    const i64 cols = shape.cols;
    const Place place(args, cols, tile);
    const i64 row = place.row;
    const u32 at = place.at, end = place.end, behind = at + knobs.span(), lane = static_cast<u32>(thread % 32);

    float v[kHeld][P];
    TW_UNROLL for (int i = 0; i < kHeld; ++i) {
      TW_UNROLL for (int j = 0; j < P; ++j) v[i][j] = 0.0f;
      if (at + i * kStep < end) F::begin(v[i], raw[i], args, cols, row, at + i * kStep);
    }
    if constexpr (knobs.ahead) load(raw, args, cols, Place(args, cols, next));
    float inverse_rms = 1.0f;
    if constexpr (knobs.norm) {
      float sum = 0.0f;
      TW_UNROLL for (int i = 0; i < kHeld; ++i) add_squares(sum, v[i]);
      if constexpr (!knobs.whole) TW_NO_UNROLL for (u32 more = behind; more < end; more += kStep) {
          float w[P];
          F::first(w, args, cols, row, more);
          add_squares(sum, w);
        }
      sum = Group::sum(sum, 0, in_block, thread);
      inverse_rms = div_rn(1.0f, sqrt_rn(add_rn(div_rn(sum, static_cast<float>(cols)), shape.eps)));
    }
    TW_UNROLL for (int i = 0; i < kHeld; ++i) if (at + i * kStep < end)
        F::finish(v[i], inverse_rms, args, at + i * kStep);

    if constexpr (Y::kRowScale) {
      Extent extent;
      TW_UNROLL for (int i = 0; i < kHeld; ++i) add(extent, v[i]);
      if constexpr (!knobs.whole) TW_NO_UNROLL for (u32 more = behind; more < end; more += kStep) {
          float w[P];
          rest<knobs.norm>(w, inverse_rms, args, cols, row, more);
          add(extent, w);
        }
      Group::join(extent, kScaleWord, in_block, thread);
      Item item = extent.item();
      const Divider by(fmt::scale_of(item), extent.largest());
      TW_UNROLL for (int i = 0; i < kHeld; ++i) if (at + i * kStep < end)
          put_codes(v[i], args, shape, row, at + i * kStep, by, item);
      if constexpr (!knobs.whole) TW_NO_UNROLL for (u32 more = behind; more < end; more += kStep) {
          float w[P];
          rest<true>(w, inverse_rms, args, cols, row, more);
          put_codes(w, args, shape, row, more, by, item);
        }
      if constexpr (kZeroPoint) item.sum = Group::sum(item.sum, kScaleWord + Extent::kFloats, in_block, thread);
      if (row < args.rows && thread == 0) static_cast<Item*>(args.y.scales)[row] = item;
    } else {
      // Blocks need all lanes of a warp that has any of the row.
      const float context = cast::tensor_scale<Y>(args.y.global);
      const u32 leading = lane * P;
      TW_UNROLL for (int i = 0; i < kHeld; ++i) {
        const u32 here = at + i * kStep;
        if constexpr (kStaged) {
          if (here - leading < end) put_blocks(v[i], args, shape, row, here, context);
        } else {
          if (here < end) put_elements(v[i], args, shape, row, here, context);
        }
      }
      if constexpr (!knobs.whole) TW_NO_UNROLL for (u32 more = behind; more - leading < end; more += kStep) {
          float w[P] = {};
          if (more < end) rest<true>(w, inverse_rms, args, cols, row, more);
          if constexpr (kStaged)
            put_blocks(w, args, shape, row, more, context);
          else if (more < end)
            put_elements(w, args, shape, row, more, context);
        }
    }
  }
};

}  // namespace tw::fused_cast
