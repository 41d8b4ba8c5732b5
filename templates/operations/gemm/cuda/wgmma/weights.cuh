// SPDX-License-Identifier: Apache-2.0
// How rows of w reach the warpgroup kernel: plain ones through the copy engine into swizzled shared memory; coded ones
// as tiles (formats/shared/tiles.cuh), which math threads unpack into the instruction's register operand.
//
// Both have kRegisters (weights are a register operand), kPromotes (scales apply to a panel's products), kStageBytes,
// and for the producer bytes(), load() and prefetch().
#pragma once
#include "backends/cuda/sm90.cuh"
#include "formats/shared/format.cuh"
#include "formats/shared/tiles.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/wgmma/plan.cuh"

namespace tw::gemm {

// Plain rows: a tile is 64 STRIPS rows of 128 bytes per panel, swizzled. CLIPS: they are tokens, whose boxes have no
// more rows than there are.
template <class X, int STRIPS, int PANELS, bool CLIPS>
struct PlainWeights {
  TW_CONSTANTS(bool, kRegisters = false, kPromotes = false);
  TW_MEMBER static constexpr float factor() { return 1.0f; }
  TW_CONSTANTS(int, BN = 64 * STRIPS, kPanelK = 128 / static_cast<int>(sizeof(typename X::Element)));
  TW_CONSTANTS(int, kStageBytes = plain_stage_bytes(BN, PANELS));

  TW_CONSTANTS(int, kRows = BN > 256 ? BN / 2 : BN, kBoxes = BN / kRows);  // rows of a box
  static_assert(BN == kRows || PANELS == 1, "several panels come in one box, of 256 rows at most");

  TW_MEMBER static int box_rows(const Shape& shape) { return CLIPS ? clipped_rows(shape.n, kRows, kBoxes) : kRows; }
  TW_MEMBER static u32 bytes(const Shape& shape, i64, i64) {
    return CLIPS ? static_cast<u32>(PANELS * kBoxes * 128 * box_rows(shape)) : kStageBytes;
  }
  TW_MEMBER static void prefetch(const Args&, const Shape&, const TensorMap* map, i64 n0, i64 kb) {
    TW_UNROLL for (int i = 0; i < kBoxes; ++i)
        tensor_prefetch(map, static_cast<i32>(n0 + i * kRows), static_cast<i32>(kb * PANELS));
  }
  TW_MEMBER static void load(u8* to, const Args&, const Shape& shape, const TensorMap* map, i64 n0, i64 kb,
                             u64* barrier, u64 policy) {
    const int rows = box_rows(shape);
    const i32 panel = static_cast<i32>(kb * PANELS);
    if (PANELS > 1 && rows < kRows) {  // (Producer::load_x() says why.)
      TW_NO_UNROLL for (int p = 0; p < PANELS; ++p)
          tensor_load(to + p * BN * 128, map, PanelPlace{static_cast<i32>(n0), panel + p}, barrier, policy);
    } else {
      TW_UNROLL for (int i = 0; i < kBoxes; ++i)
          tensor_load(to + i * rows * 128, map, PanelPlace{static_cast<i32>(n0 + i * rows), panel}, barrier, policy);
    }
  }
};

// Tiles: for each strip of 64 rows, the stage's panels of codes are contiguous, and so are its chunks of scales.
// TOKENS: tokens per tile of a kernel that can apply scales to sums of groups; 0 for one that cannot.
template <class X, class W, int STRIPS, int PANELS, int TOKENS = 0>
struct TileWeights {
  using Element = tile_element<X, W>;
  using Stored = typename W::template Tile<Element>;
  using Tile = select<(TOKENS > 0), typename UnpackedFor<Stored, same<Element, Codes>() ? 1 : TOKENS>::type, Stored>;
  // Words of a panel that a thread reads, and its share of those that are stored.
  TW_CONSTANTS(int, kWords = tile_words<Tile, Element>(), kStoredWords = kWords);
  TW_CONSTANTS(bool, kRegisters = true, kPromotes = Tile::kScaleAfterMma);
  TW_MEMBER static constexpr float factor() { return Tile::factor(); }
  TW_CONSTANTS(int, kPanelK = 32 * tile_width<Element>(), BK = PANELS * kPanelK);
  TW_CONSTANTS(int, kTileBytes = 512 * kWords);
  TW_CONSTANTS(int, kChunkBytes = 64 * Tile::kScaleBytes);  // of kScaleK columns
  TW_CONSTANTS(int, kChunks = scale_chunks(BK, Tile::kScaleK, Tile::kScaleBytes));
  static_assert(kChunks == 0 || BK % Tile::kScaleK == 0 || Tile::kScaleK % BK == 0,
                "a stage is whole chunks of scales, or a chunk whole stages");
  TW_CONSTANTS(int, kCodeBytes = STRIPS * PANELS * kTileBytes);
  TW_CONSTANTS(int, kStageBytes = tile_stage_bytes(STRIPS, PANELS, kWords, kChunks, Tile::kScaleBytes));

  // k is whole stages (a test for panels that do not exist would serialize the matrix instructions); n is whole strips.
  TW_MEMBER static int strips(const Shape& shape, i64 n0) {
    return static_cast<int>(max2(i64{0}, min2(i64{STRIPS}, (shape.n - n0) / 64)));
  }
  TW_MEMBER static u32 bytes(const Shape& shape, i64 n0, i64) {
    return static_cast<u32>(strips(shape, n0) * (PANELS * kTileBytes + kChunks * kChunkBytes));
  }
  TW_MEMBER static void prefetch(const Args& args, const Shape& shape, const TensorMap*, i64 n0, i64 kb) {
    const i64 row_tiles = shape.k / kPanelK;
    const u8* codes = static_cast<const u8*>(args.w.data) + (n0 / 64 * row_tiles + kb * PANELS) * kTileBytes;
    for (int s = 0; s < strips(shape, n0); ++s) bulk_prefetch(codes + s * row_tiles * kTileBytes, PANELS * kTileBytes);
  }
  TW_MEMBER static void load(u8* to, const Args& args, const Shape& shape, const TensorMap*, i64 n0, i64 kb,
                             u64* barrier, u64 policy) {
    const int count = strips(shape, n0);
    const i64 row_tiles = shape.k / kPanelK, row_chunks = kChunks ? ceil_div64(shape.k, max2(1, Tile::kScaleK)) : 0;
    const u8* codes = static_cast<const u8*>(args.w.data) + (n0 / 64 * row_tiles + kb * PANELS) * kTileBytes;
    for (int s = 0; s < count; ++s)
      bulk_load(to + s * PANELS * kTileBytes, codes + s * row_tiles * kTileBytes, PANELS * kTileBytes, barrier, policy);
    if constexpr (kChunks > 0) {
      const u8* scales =
          static_cast<const u8*>(args.w.scales) + (n0 / 64 * row_chunks + kb * BK / Tile::kScaleK) * kChunkBytes;
      for (int s = 0; s < count; ++s)
        bulk_load(to + kCodeBytes + s * kChunks * kChunkBytes, scales + s * row_chunks * kChunkBytes,
                  kChunks * kChunkBytes, barrier, policy);
    }
  }

  // This thread's words of codes of a strip's panel, and its two rows' scales. Each of the warpgroups that split a
  // stage's k has ITEMS panels of it; `panel` is counted within those of warpgroup `k_group`, so that in an unrolled
  // loop an address is a register plus a constant.
  template <int ITEMS = PANELS>
  TW_MEMBER static void read_codes(const u8* stage, int strip, int k_group, int panel, int thread,
                                   u32 (&words)[kWords]) {
    const u8* from = stage + k_group * (ITEMS * kTileBytes) + (strip * PANELS + panel) * kTileBytes;
    TW_UNROLL for (int i = 0; i < kWords / 4; ++i) {
      const u32x4 q = *reinterpret_cast<const u32x4*>(from + i * 2048 + thread * 16);
      words[4 * i] = q.x, words[4 * i + 1] = q.y, words[4 * i + 2] = q.z, words[4 * i + 3] = q.w;
    }
    constexpr int kSingle = kWords % 4, kDone = kWords / 4 * 4;
    TW_UNROLL for (int i = 0; i < kSingle; ++i) words[kDone + i] =
        *reinterpret_cast<const u32*>(from + kDone * 512 + i * 512 + thread * 4);
  }
  // As: how the tile is unpacked.
  template <int ITEMS = PANELS, class As = Tile>
  TW_MEMBER static typename As::Scales read_scales(const u8* stage, int strip, i64 kb, int k_group, int panel,
                                                   int thread) {
    if constexpr (kChunks == 0) {
      return {};
    } else {
      constexpr u32 kOfChunk = max2(1, Tile::kScaleK / kPanelK);  // panels
      constexpr bool kWhole = ITEMS % kOfChunk == 0;              // a warpgroup has whole chunks
      const u32 first = static_cast<u32>(k_group) * ITEMS, place = static_cast<u32>(panel) + (kWhole ? 0 : first);
      const u8* chunks = stage + kCodeBytes + strip * kChunks * kChunkBytes +
                         (kWhole ? first * kPanelK / Tile::kScaleK * kChunkBytes : 0);
      const u32 chunk = Tile::kScaleK > BK ? 0 : place * kPanelK / Tile::kScaleK;
      const u32 part = (static_cast<u32>(kb) * PANELS + place) % kOfChunk;
      return As::scales(chunks + chunk * kChunkBytes, thread / 32 * 8 + thread % 32 / 4, static_cast<int>(part));
    }
  }
};

// Tiles for f16, two of whose panels are unpacked to one of E4M3 (NarrowedTile).
template <class X, class W, int STRIPS, int PANELS>
struct NarrowedWeights {
  using Stored = TileWeights<X, W, STRIPS, 2 * PANELS>;
  using Narrow = narrowed_tile<typename Stored::Tile>;
  TW_CONSTANTS(bool, kRegisters = true, kPromotes = false);
  TW_CONSTANTS(int, kOfPanel = Stored::kWords, kStoredWords = 2 * kOfPanel, kWords = 2 * kStoredWords);
  TW_CONSTANTS(int, kPanelK = 2 * Stored::kPanelK, kStageBytes = Stored::kStageBytes);
  TW_MEMBER static constexpr float factor() { return Narrow::factor(); }

  TW_MEMBER static u32 bytes(const Shape& shape, i64 n0, i64 kb) { return Stored::bytes(shape, n0, kb); }
  TW_MEMBER static void prefetch(const Args& args, const Shape& shape, const TensorMap* map, i64 n0, i64 kb) {
    Stored::prefetch(args, shape, map, n0, kb);
  }
  TW_MEMBER static void load(u8* to, const Args& args, const Shape& shape, const TensorMap* map, i64 n0, i64 kb,
                             u64* barrier, u64 policy) {
    Stored::load(to, args, shape, map, n0, kb, barrier, policy);
  }

  struct Tile : Narrow {
    struct Scales {
      typename Narrow::Scales panels[2];
      typename Narrow::Place::Move rows[2];
    };
    // words: for each panel those of one thread and of the next. A step is two groups of sixteen columns.
    TW_MEMBER static void fragment(const u32 (&words)[kWords], int step, const Scales& scales, u32 (&a)[4]) {
      TW_UNROLL for (int r = 0; r < 4; ++r) {
        const int group = step % 2 * 2 + r / 2, at = step / 2 * kStoredWords + group;
        a[r] = Narrow::narrowed(words[at], words[at + kOfPanel], scales.rows[r % 2], scales.panels[step / 2], r % 2,
                                group);
      }
    }
  };
  template <int ITEMS = PANELS>
  TW_MEMBER static void read_codes(const u8* stage, int strip, int k_group, int panel, int thread,
                                   u32 (&words)[kWords]) {
    const int first = thread / 4 * 4 + thread % 2 * 2;
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      u32 of_one[kOfPanel];
      Stored::template read_codes<2 * ITEMS>(stage, strip, k_group, 2 * panel + i / 2, first + i % 2, of_one);
      TW_UNROLL for (int j = 0; j < kOfPanel; ++j) words[i * kOfPanel + j] = of_one[j];
    }
  }
  template <int ITEMS = PANELS>
  TW_MEMBER static typename Tile::Scales read_scales(const u8* stage, int strip, i64 kb, int k_group, int panel,
                                                     int thread) {
    typename Tile::Scales s;
    TW_UNROLL for (int i = 0; i < 2; ++i) {
      s.panels[i] = Stored::template read_scales<2 * ITEMS, Narrow>(stage, strip, kb, k_group, 2 * panel + i, thread);
      s.rows[i] = typename Narrow::Place::Move(i, i + 2, thread % 4 < 2);
    }
    return s;
  }
};

// Whether both operands are plain: elements of one type, or of the two FP8 types, whatever their scales. Codes have no
// element.
template <class X, class W>
TW_FN constexpr bool plain_pair() {
  return (same<element_of<X>, element_of<W>>() && !same<element_of<X>, void>()) ||
         (is_fp8_type<element_of<X>>() && is_fp8_type<element_of<W>>());
}

// NARROW: with may_narrow(). CLIPS: of PlainWeights.
template <class X, class W, int STRIPS, int PANELS, int TOKENS, bool NARROW, bool CLIPS>
struct WeightsOf {
  using type = select<plain_pair<X, W>(), PlainWeights<X, STRIPS, PANELS, CLIPS>,
                      select<NARROW, NarrowedWeights<X, W, STRIPS, PANELS>, TileWeights<X, W, STRIPS, PANELS, TOKENS>>>;
};

}  // namespace tw::gemm
