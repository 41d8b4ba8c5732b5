// SPDX-License-Identifier: Apache-2.0
// Tiles: weights as the warpgroup instruction takes them from registers. A packed matrix is a lossless reordering of a
// coded one, made once at load: for each strip of 64 rows, and each panel of 128 bytes of x along k (64 columns against
// 16-bit x, 128 against 8-bit x), the words of codes of 128 threads, so that a thread fetches its four fragments with
// 16-byte loads. Word i of thread t is at word 4 t + i % 4 of plane i / 4; words beyond the last whole four lie one
// plane of 128 words each. The scales of a strip's 64 rows are ordered by thread too: rows q and q + 8 of a warp's
// sixteen are neighbours, at 2 (8 warp + q) and the next.
//
// Fragment of step s (of four): register r of thread t holds row 16 (t / 32) + t % 32 / 4 + 8 (r % 2) and `width`
// elements (2 or 4 to a word) from k = 2 width (4 s) ... : column (8 s + t % 4 + 4 (r / 2)) * width of the panel.
//
// A format has tiles for x of Element (tile_element<X, W>: f16, bf16, e4m3, i8 or Codes) if tiles_for<Element>() is
// true; then Tile<Element> has
//   kBits                        of a stored code: 2, 3, 4, 5, 6 or 8
//   Place                        where codes are, if not as TilePlace has them
//   code(block, i)               the stored form of element i of a block
//   put_code(block, i, code)     its inverse, into zeroed bits; or where eight elements share them
//   put_eight(block, n, codes)   of eight n, in the nibbles of a word
//   kScaleK, kScaleBytes         columns per chunk of scales, bytes per row of one (0: no such stream)
//   put_scales(out, data, scales, k)    a row's chunk from column k
//   take_scales(in, data, scales, k)    its inverse
//   Scales, scales(chunk, pair, part)   two rows' scales in registers: rows 2 pair and 2 pair + 1 of a chunk, for its
//                                panel `part`
//   fragment(words, step, scales, a)    the registers of a step; what they hold is
//   kScaleAfterMma               true: codes alone; row_scale(scales, row, step) is to be applied to the products' sum
//   kOffset                      true: values are code * step plus what code 0 stands for; where that is not in the
//                                fragments either, row_minimum(scales, row, step) is to be multiplied by the sum of x
//   factor()                      what fragments lack besides, given to the epilogue
//   rounding()                    largest relative error of an unpacked value; with kOffset, of the two parts that it
//   is
//                                the sum of; 0: exact
//   Narrowed                     optional, of tiles for f16: how two of them are unpacked to E4M3, against x of that,
//   if
//                                the problem allows it; void, or left out: they are not
//   AfterMma                     how the same tile is unpacked with kScaleAfterMma, within rounding() too, where tokens
//                                are few and that takes fewer instructions; void, or the tile itself: it is not
#pragma once
#include "backends/cuda/ptx.cuh"

namespace tw {

// Stands for the element of an x in blocks of codes with a scale: fragments are w's codes as 16-bit floats, integers,
// and its scales are applied to each group's products. The tiles themselves are those for f16.
struct Codes {};
// Whether W has tiles for x of Element.
template <class W, class Element>
TW_FN constexpr bool has_tile() {
  return W::template tiles_for<Element>();
}
// The element for which W's tiles are, if x's kernels take those for Element: that, or, where codes have no tiles for
// E4M3, what x is widened to. f16 and bf16 hold every E4M3, so the first that W has tiles for will do.
template <class Element, class W>
struct TileElementFor {
  using type = Element;
};
template <class W>
struct TileElementFor<e4m3, W> {
  using Wide = select<has_tile<W, f16>(), f16, bf16>;
  using type = select<(!W::kCodes || has_tile<W, e4m3>()), e4m3, Wide>;
};
template <class X, class W>
using tile_element = typename TileElementFor<typename X::TileElement, W>::type;

// Where an element's code is: word of the thread, and the shift within it. Codes of 3, 5 and 6 bits are placed as their
// lower 2 or 4 bits, and the others in words behind. The two elements of a 16-bit pair are in different halves of a
// word.
template <int bits, int width>
struct TilePlace {
  TW_CONSTANTS(int, kLow = bits == 8 ? 8 : bits >= 4 ? 4 : 2, kHigh = bits - kLow);
  TW_CONSTANTS(int, kLowWords = kLow * width / 2, kWords = kLowWords + kHigh * width / 2);
  static_assert(bits == 8 || bits == 4 || width == 2, "other codes are for 16-bit x");
  TW_MEMBER static constexpr int word(int step, int r) {
    if (kLow == 2) return step / 2;
    return kLow == 4 ? (width == 2 ? step : 2 * step + r / 2) : width == 2 ? 2 * step + r / 2 : 4 * step + r;
  }
  TW_MEMBER static constexpr int shift(int step, int r, int e) {
    if (kLow == 2) return 2 * (4 * (step % 2) + r) + 16 * e;
    return kLow == 4    ? (width == 2 ? 4 * (r + 4 * e) : 4 * (2 * e + r % 2))
           : width == 2 ? 8 * (2 * (r % 2) + e)
                        : 8 * e;
  }
  TW_MEMBER static constexpr int high_word(int step) { return kLowWords + (kHigh == 2 ? step / 2 : 0); }
  // Those of registers that share a shift of the lower bits are as far from each other as these, for one shift to do
  // here too.
  TW_MEMBER static constexpr int high_shift(int step, int r, int e) {
    if (kLow == 2) return step % 2 + 8 * (step / 2) + 2 * r + 16 * e;
    const int pair = (2 * step + r / 2) % (8 / kHigh);  // of registers
    return pair % (4 / kHigh) * kHigh + 8 * (pair / (4 / kHigh)) + 4 * (r % 2) + 16 * e;
  }
  TW_MEMBER static void put(u32* words, int step, int r, int e, u32 code) {
    words[word(step, r)] |= (code & ((1u << kLow) - 1)) << shift(step, r, e);
    if constexpr (kHigh > 0) words[high_word(step)] |= (code >> kLow) << high_shift(step, r, e);
  }
  // at(i): word i of the thread.
  template <class At>
  TW_MEMBER static u32 get(const At& at, int step, int r, int e) {
    u32 code = (at(word(step, r)) >> shift(step, r, e)) & ((1u << kLow) - 1);
    if constexpr (kHigh > 0) code |= ((at(high_word(step)) >> high_shift(step, r, e)) & ((1u << kHigh) - 1)) << kLow;
    return code;
  }
};
// Tile::Place, or of codes whose bits lie together.
template <class Tile, int width, class = void>
struct TilePlaceOf {
  using type = TilePlace<Tile::kBits, width>;
};
template <class Tile, int width>
struct TilePlaceOf<Tile, width, void_of<typename Tile::Place>> {
  using type = typename Tile::Place;
};
template <class Element>
TW_FN constexpr int tile_width() {
  return same<Element, Codes>() ? 2 : 4 / static_cast<int>(sizeof(Element));
}
template <class Tile, class Element>
TW_FN constexpr int tile_words() {
  return TilePlaceOf<Tile, tile_width<Element>()>::type::kWords;
}
// Row within the strip and column within the panel.
template <int width>
TW_FN constexpr int tile_row(int thread, int r) {
  return 16 * (thread / 32) + thread % 32 / 4 + 8 * (r % 2);
}
template <int width>
TW_FN constexpr int tile_column(int thread, int step, int r, int e) {
  return (8 * step + thread % 4 + 4 * (r / 2)) * width + e;
}
// Where word i of a thread is, in words from the tile's begin.
template <int words>
TW_FN constexpr int tile_word(int thread, int i) {
  return i / 4 * 512 + (i < words / 4 * 4 ? thread * 4 + i % 4 : i % 4 * 128 + thread);
}
// Where the scales of a strip's row are, in rows from the chunk's begin.
TW_FN constexpr int tile_slot(int row) { return row / 16 * 16 + row % 8 * 2 + row / 8 % 2; }

// The first `count` codes of a block, code(i), into zeroed bits.
template <class Tile, class = void>
struct PutCodes {
  template <class Code>
  TW_MEMBER static void put(u8* block, int count, const Code& code) {
    for (int i = 0; i < count; ++i) Tile::put_code(block, i, code(i));
  }
};
template <class Tile>
struct PutCodes<Tile, void_of<decltype(&Tile::put_eight)>> {
  template <class Code>
  TW_MEMBER static void put(u8* block, int count, const Code& code) {
    for (int n = 0; n < count / 8; ++n) {
      u32 codes = 0;
      for (int i = 0; i < 8; ++i) codes |= code(8 * n + i) << (4 * i);
      Tile::put_eight(block, n, codes);
    }
  }
};

// A stretch of a row in W's own layout, rebuilt from tiles: whole blocks, and whole chunks of scales.
template <class W, class Element>
struct TiledUnit {
  using Tile = typename W::template Tile<Element>;
  TW_CONSTANTS(int, kWidth = tile_width<Element>(), kPanelK = 32 * kWidth, kWords = tile_words<Tile, Element>());
  using Place = typename TilePlaceOf<Tile, kWidth>::type;
  TW_CONSTANTS(int, kColumns = max2(max2(W::kBlock, 32), Tile::kScaleBytes ? Tile::kScaleK : 0));
  TW_CONSTANTS(int, kBlocks = kColumns / W::kBlock);
  TW_CONSTANTS(int, kData = kBlocks * W::kDataBytes, kScales = kBlocks * W::kScaleBytes);
  static_assert(kColumns % W::kBlock == 0 && (Tile::kScaleBytes == 0 || kColumns % max2(1, Tile::kScaleK) == 0),
                "units");
  u8 data[kData], scales[max2(1, kScales)];

  // Columns from kColumns * unit on; those beyond k are junk. Without its codes: as if they were 0.
  template <bool codes>
  TW_MEMBER void read(const void* tile_data, const void* tile_scales, i64 k, i64 row, i64 unit) {
    for (int i = 0; i < kData; ++i) data[i] = 0;
    for (int i = 0; i < kScales; ++i) scales[i] = 0;
    const i64 strip = row / 64, first = unit * kColumns;
    const int in_strip = static_cast<int>(row % 64), columns = static_cast<int>(min2(i64{kColumns}, k - first));
    if constexpr (Tile::kScaleBytes > 0) {
      const u8* chunks = static_cast<const u8*>(tile_scales) +
                         (strip * ceil_div64(k, Tile::kScaleK) * 64 + tile_slot(in_strip)) * Tile::kScaleBytes;
      for (int c = 0; c < columns; c += Tile::kScaleK)
        Tile::take_scales(chunks + (first + c) / Tile::kScaleK * (64 * Tile::kScaleBytes), data, scales, c);
    }
    if constexpr (codes) {
      const u32* panels = static_cast<const u32*>(tile_data) + strip * (k / kPanelK) * (128 * kWords);
      const auto code = [&](i64 at) {
        const int column = static_cast<int>(at % kPanelK), e = column % kWidth, p = column / kWidth, step = p / 8;
        const int thread = in_strip / 16 * 32 + in_strip % 8 * 4 + p % 4, r = p / 4 % 2 * 2 + in_strip / 8 % 2;
        const u32* tile = panels + at / kPanelK * (128 * kWords);
        return Place::get([&](int word) { return tile[tile_word<kWords>(thread, word)]; }, step, r, e);
      };
      for (int b = 0; b * W::kBlock < columns; ++b)
        PutCodes<Tile>::put(data + b * W::kDataBytes, min2(W::kBlock, columns - b * W::kBlock),
                            [&](int i) { return code(first + b * W::kBlock + i); });
    }
  }
};

// Tiles without scales: a row's or the tensor's are left to the epilogue.
struct UnscaledTile {
  TW_CONSTANTS(int, kScaleK = 0, kScaleBytes = 0);
  TW_CONSTANTS(bool, kScaleAfterMma = false, kOffset = false);
  TW_MEMBER static constexpr double rounding() { return 0; }
  using AfterMma = void;
  TW_MEMBER static void put_scales(u8*, const u8*, const u8*, i64) {}
  TW_MEMBER static void take_scales(const u8*, u8*, u8*, i64) {}
  struct Scales {};
};

// Tile::Narrowed, a tile of E4M3 that two panels of Tile are unpacked to; void: they are not.
//   Scales                       of one of the two, as they are stored
//   fragment(words, step, scales, a)   of NarrowedWeights (operations/gemm/cuda/wgmma/weights.cuh)
//   rounding(), least()          largest error of an unpacked value that scales of the tensor are not part of:
//   relative,
//                                and besides
template <class Tile, class = void>
struct NarrowedTile {
  using type = void;
};
template <class Tile>
struct NarrowedTile<Tile, void_of<typename Tile::Narrowed>> {
  using type = typename Tile::Narrowed;
};
template <class Tile>
using narrowed_tile = typename NarrowedTile<Tile>::type;
// Whether W's tiles for x of X, which are for f16, may be unpacked to X's element instead.
template <class X, class W>
TW_FN constexpr bool may_narrow() {
  if constexpr (same<typename X::TileElement, e4m3>() && same<tile_element<X, W>, f16>())
    return !same<narrowed_tile<typename W::template Tile<f16>>, void>();
  else
    return false;
}

// Sums of x that a panel needs.
template <class Tile>
TW_FN constexpr int x_groups() {
  if constexpr (Tile::kScaleAfterMma && Tile::kOffset)
    return Tile::kGroups;
  else
    return 0;
}

// How a tile is unpacked for so many tokens. With few there are fewer sums of products than weights, so scales are
// applied to those; but sums of x take registers, and products of their own.
template <class Tile, int tokens, class AfterMma = typename Tile::AfterMma>
struct UnpackedFor {
  using type = select<(x_groups<AfterMma>() * tokens <= 32), AfterMma, Tile>;
};
template <class Tile, int tokens>
struct UnpackedFor<Tile, tokens, void> {
  using type = Tile;
};

}  // namespace tw
