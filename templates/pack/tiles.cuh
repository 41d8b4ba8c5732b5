// SPDX-License-Identifier: Apache-2.0
// A coded matrix to tiles (core/tiles.cuh), and back. Runs once per weight at load; a thread takes one thread's codes of a
// tile, or one row's chunk of scales.
#pragma once
#include "core/tiles.cuh"
#include "pack/params.cuh"

namespace tw::pack {

template <class W, class Element, bool inverse> struct Tiles {
  using Tile = typename W::template Tile<Element>;
  static constexpr int kThreads = 128, kSharedBytes = 0;
  static constexpr int kWidth = 4 / static_cast<int>(sizeof(Element)), kPanelK = 64 * kWidth / 2;
  using Place = TilePlace<Tile::kBits, kWidth>;
  static constexpr int kWords = Place::kWords;

  // Block x: a tile; the last block of a strip of tiles does the strip's scales.
  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 panels = shape.k / kPanelK, strip = block_x() / (panels + 1), panel = block_x() % (panels + 1);
    const int thread = static_cast<int>(thread_x());
    if (panel < panels) codes(args, shape, strip, panel, thread);
    else if constexpr (Tile::kScaleBytes > 0) scales(args, shape, strip, thread);
  }
  TW_MEMBER static void codes(const Args& args, const Shape& shape, i64 strip, i64 panel, int thread) {
    u8* tiled = static_cast<u8*>(args.tiles.data) + (strip * (shape.k / kPanelK) + panel) * 512 * kWords;
    const i64 stride = shape.k / W::kBlock * W::kDataBytes;
    u32 words[kWords] = {};
    if constexpr (inverse) {
      TW_UNROLL for (int i = 0; i < kWords; ++i) words[i] = *word_at(tiled, i, thread);
    }
    TW_UNROLL for (int step = 0; step < 4; ++step)
      TW_UNROLL for (int r = 0; r < 4; ++r)
        TW_UNROLL for (int e = 0; e < kWidth; ++e) {
          const i64 n = strip * 64 + tile_row<kWidth>(thread, r), k = panel * kPanelK + tile_column<kWidth>(thread, step, r, e);
          u8* block = static_cast<u8*>(args.w.data) + n * stride + k / W::kBlock * W::kDataBytes;
          if constexpr (inverse) Tile::put_code(block, static_cast<int>(k % W::kBlock), Place::take(words, step, r, e));
          else Place::put(words, step, r, e, Tile::code(block, static_cast<int>(k % W::kBlock)));
        }
    if constexpr (!inverse) {
      TW_UNROLL for (int i = 0; i < kWords; ++i) *word_at(tiled, i, thread) = words[i];
    }
  }
  TW_MEMBER static u32* word_at(u8* tile, int i, int thread) {
    const int plane = i / 4 * 4;
    return reinterpret_cast<u32*>(tile) + plane * 128 + (i < kWords / 4 * 4 ? thread * 4 + i % 4 : i % 4 * 128 + thread);
  }
  TW_MEMBER static void scales(const Args& args, const Shape& shape, i64 strip, int thread) {
    const i64 chunks = ceil_div64(shape.k, Tile::kScaleK);
    const i64 data_stride = shape.k / W::kBlock * W::kDataBytes, scale_stride = shape.k / W::kBlock * W::kScaleBytes;
    for (i64 i = thread; i < chunks * 64; i += kThreads) {
      const i64 chunk = i / 64, slot = i % 64, n = strip * 64 + slot / 16 * 16 + slot / 2 % 8 + slot % 2 * 8;
      u8* at = static_cast<u8*>(args.tiles.scales) + ((strip * chunks + chunk) * 64 + slot) * Tile::kScaleBytes;
      u8* data = static_cast<u8*>(args.w.data) + n * data_stride;
      u8* scales = W::kScaleBytes ? static_cast<u8*>(args.w.scales) + n * scale_stride : nullptr;
      if constexpr (inverse) Tile::take_scales(at, data, scales, chunk * Tile::kScaleK);
      else Tile::put_scales(at, data, scales, chunk * Tile::kScaleK);
    }
  }
};

}  // namespace tw::pack
