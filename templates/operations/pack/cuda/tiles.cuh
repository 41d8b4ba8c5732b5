// SPDX-License-Identifier: Apache-2.0
// A coded matrix to tiles (formats/shared/tiles.cuh), and back. Runs once per weight at load.
//
// Every function below is one thread's share, so that the host can do the same by counting through them.
#pragma once
#include "formats/shared/format.cuh"
#include "formats/shared/tiles.cuh"
#include "operations/pack/params.cuh"

namespace tw::pack {

template <class W, class Element, bool inverse>
struct Tiles {
  using Tile = typename W::template Tile<Element>;
  using Unit = TiledUnit<W, Element>;
  using Place = typename Unit::Place;
  TW_CONSTANTS(int, kThreads = 128, kSharedBytes = 0);
  TW_CONSTANTS(int, kWidth = Unit::kWidth, kPanelK = Unit::kPanelK, kWords = Unit::kWords);
  static_assert(!W::kRowScale || Tile::kScaleBytes == 0, "one stream of scales");

  // Any number of blocks; as many as tiles are best.
  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 thread = static_cast<i64>(block_x()) * kThreads + thread_x(),
              threads = static_cast<i64>(grid_x()) * kThreads;
    if constexpr (inverse) {
      for (i64 i = thread; i < units(shape); i += threads) unpack(args, shape, i);
    } else {
      for (i64 i = block_x(); i < tiles(shape); i += grid_x()) codes(args, shape, i, static_cast<int>(thread_x()));
      for (i64 i = thread; i < scale_items(shape); i += threads) scales(args, shape, i);
    }
    for (i64 i = thread; i < float_items(args, shape); i += threads) floats(args, i);
  }

  // ---- to tiles: the codes of one thread of a tile
  TW_MEMBER static i64 tiles(const Shape& shape) { return shape.n / 64 * (shape.k / kPanelK); }
  TW_MEMBER static void codes(const Args& args, const Shape& shape, i64 tile, int thread) {
    const i64 panels = shape.k / kPanelK, strip = tile / panels, panel = tile % panels;
    const u8* data = static_cast<const u8*>(args.w.data);
    u32 words[kWords] = {};
    TW_UNROLL for (int step = 0; step < 4; ++step) TW_UNROLL for (int r = 0; r < 4; ++r)
        TW_UNROLL for (int e = 0; e < kWidth; ++e) {
      const i64 n = strip * 64 + tile_row<kWidth>(thread, r),
                k = panel * kPanelK + tile_column<kWidth>(thread, step, r, e);
      const u8* block = data + (n * shape.k + k) / W::kBlock * W::kDataBytes;
      Place::put(words, step, r, e, Tile::code(block, static_cast<int>(k % W::kBlock)));
    }
    u32* out = static_cast<u32*>(args.tiles.data) + tile * (128 * kWords);
    TW_UNROLL for (int i = 0; i < kWords; ++i) out[tile_word<kWords>(thread, i)] = words[i];
  }
  // ---- a row's chunk of scales. The last of a row may reach beyond it, hence the copy.
  TW_MEMBER static i64 scale_items(const Shape& shape) {
    if constexpr (Tile::kScaleBytes > 0) return shape.n * ceil_div64(shape.k, Tile::kScaleK);
    return 0;
  }
  TW_MEMBER static void scales(const Args& args, const Shape& shape, i64 i) {
    if constexpr (Tile::kScaleBytes > 0) {
      const i64 chunks = ceil_div64(shape.k, Tile::kScaleK), chunk = i / 64 % chunks;
      const int slot = static_cast<int>(i % 64);
      const i64 n = i / 64 / chunks * 64 + slot / 16 * 16 + slot / 2 % 8 + slot % 2 * 8;  // tile_slot()'s inverse
      const i64 unit = chunk * Tile::kScaleK / Unit::kColumns, first = unit * Unit::kColumns;
      const int blocks = static_cast<int>(min2(i64{Unit::kBlocks}, (shape.k - first) / W::kBlock));
      const i64 at = (n * shape.k + first) / W::kBlock;
      u8 data[Unit::kData] = {}, scales[max2(1, Unit::kScales)] = {}, out[Tile::kScaleBytes] = {};
      for (int b = 0; b < blocks * W::kDataBytes; ++b)
        data[b] = static_cast<const u8*>(args.w.data)[at * W::kDataBytes + b];
      for (int b = 0; b < blocks * W::kScaleBytes; ++b)
        scales[b] = static_cast<const u8*>(args.w.scales)[at * W::kScaleBytes + b];
      Tile::put_scales(out, data, scales, chunk * Tile::kScaleK - first);
      for (int b = 0; b < Tile::kScaleBytes; ++b)
        static_cast<u8*>(args.tiles.scales)[i * Tile::kScaleBytes + b] = out[b];
    }
  }
  // ---- back: a unit of W's layout belongs to one thread, since codes of several tiles share its bytes
  TW_MEMBER static i64 units(const Shape& shape) { return shape.n * ceil_div64(shape.k, Unit::kColumns); }
  TW_MEMBER static void unpack(const Args& args, const Shape& shape, i64 i) {
    const i64 per_row = ceil_div64(shape.k, Unit::kColumns), n = i / per_row, unit = i % per_row,
              first = unit * Unit::kColumns;
    const int blocks = static_cast<int>(min2(i64{Unit::kBlocks}, (shape.k - first) / W::kBlock));
    const i64 at = (n * shape.k + first) / W::kBlock;
    Unit u;
    u.template read<true>(args.tiles.data, args.tiles.scales, shape.k, n, unit);
    for (int b = 0; b < blocks * W::kDataBytes; ++b) static_cast<u8*>(args.w.data)[at * W::kDataBytes + b] = u.data[b];
    for (int b = 0; b < blocks * W::kScaleBytes; ++b)
      static_cast<u8*>(args.w.scales)[at * W::kScaleBytes + b] = u.scales[b];
  }
  // ---- floats that both forms have alike, scales of rows or the tensor's, where both sides have a place for them
  TW_MEMBER static i64 float_items(const Args& args, const Shape& shape) {
    if constexpr (W::kRowScale) return args.w.scales && args.tiles.scales ? shape.n : 0;
    return W::kGlobal && args.w.global && args.tiles.global ? 1 : 0;
  }
  TW_MEMBER static void floats(const Args& args, i64 i) {
    const MutableOperand &from = inverse ? args.tiles : args.w, &to = inverse ? args.w : args.tiles;
    if constexpr (W::kRowScale)
      static_cast<fmt::row_item<W>*>(to.scales)[i] = fmt::row_item_at<W>(from.scales, i);
    else
      to.global[i] = from.global[i];
  }
};

}  // namespace tw::pack
