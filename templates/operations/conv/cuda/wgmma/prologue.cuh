// SPDX-License-Identifier: Apache-2.0
// What a launch writes to the workspace before it multiplies, by all blocks together
// (operations/gemm/cuda/wgmma/prologue.cuh): x where its channels come first or are no whole pieces of 16 bytes, or it
// is fake quantized; w where its channels are so, it is of another format than x, or x is unfolded; both where single
// precision is rounded to bfloat16. Boxes are then read from there.
//
// Workspace: the words of operations/gemm/cuda/wgmma/schedule.cuh, w, x.
#pragma once
#include "operations/conv/cuda/wgmma/channels_last.cuh"
#include "operations/conv/cuda/wgmma/written_weights.cuh"
#include "operations/gemm/cuda/wgmma/prologue.cuh"

namespace tw::conv {

// F's elements, written as To.
template <class F, class To>
struct Written : fmt::Plain<To, 8 * static_cast<int>(sizeof(To))> {
  TW_CONSTANTS(bool, kRowScale = F::kRowScale, kGlobal = F::kGlobal);
  using RowItem = fmt::row_item<F>;
};

// Bytes of w as it is written, and where x begins behind the workspace's first byte.
TW_FN constexpr i64 written_filter_bytes(i64 k, i64 taps, i32 channels, int element_bytes) {
  return (k * taps * written_channels(channels, element_bytes) * element_bytes + 127) / 128 * 128;
}
TW_FN constexpr i64 written_x_at(i64 filter_bytes) { return gemm::kScheduleBytes + filter_bytes; }

// Shared memory in front of the barriers that this takes at least: the number of a piece, and what it passes through.
TW_CONSTANTS(int, kPieceNumberBytes = 16);
TW_FN constexpr int writing_room(const WgmmaKnobs& k, int threads) {
  const int x = k.writes_x ? pixels_room(kLeastPiece, k.unfolds) : 0,
            w = k.writes_w ? weights_room(threads, k.element_bytes) : 0;
  return k.writes_x || k.writes_w ? kPieceNumberBytes + max2(x, w) : 0;
}

// X, W: as a launch passes x and w; XTo, WTo: the elements that are written; ROOM: bytes in front of the barriers.
template <const WgmmaKnobs& knobs, class X, class W, class XTo, class WTo, int THREADS, int ROOM>
struct Prologue {
  using From = typename X::Element;
  using WritesAs = select<knobs.writes_w, WTo, XTo>;  // tiles, which stay as they are, have no element
  static_assert(writing_room(knobs, THREADS) <= ROOM, "pieces pass through memory in front of the barriers");

  // source, shape: the problem's, and of what is multiplied.
  TW_MEMBER static void run(const Args& args, const Shape& source, const Shape& shape, u8* memory, int thread) {
    u8* const workspace = static_cast<u8*>(args.workspace);
    u32& own = *reinterpret_cast<u32*>(memory);
    u8* const room = memory + kPieceNumberBytes;
    const i64 filter_bytes =
        knobs.writes_w ? written_filter_bytes(shape.k, shape.taps(), shape.c, sizeof(WritesAs)) : 0;
    const ChannelsLast<From, XTo, THREADS, piece_bytes(ROOM - kPieceNumberBytes, knobs.unfolds), knobs.quant_block,
                       knobs.unfolds>
        pixels{args, source, shape, reinterpret_cast<XTo*>(workspace + written_x_at(filter_bytes)),
               reinterpret_cast<From*>(room)};
    const WrittenWeights<W, WritesAs, knobs.channels, knobs.w_channels_first, knobs.unfolds, THREADS> weights{
        args, source, shape, reinterpret_cast<WritesAs*>(workspace + gemm::kScheduleBytes),
        reinterpret_cast<u32x4*>(room)};
    u32 of_weights = 0, of_pixels = 0;
    if constexpr (knobs.writes_w) of_weights = weights.pieces();
    if constexpr (knobs.writes_x) of_pixels = pixels.pieces();
    // (What either derives from the thread must not be kept in registers for all pieces.)
    gemm::share_pieces(workspace, of_weights + of_pixels, grid_x(), own, thread, [&](u32 piece) {
      if constexpr (knobs.writes_w)
        if (piece < of_weights) return weights.write(piece, opaque(thread));
      if constexpr (knobs.writes_x) pixels.write(piece - of_weights, opaque(thread));
    });
    fence_async();  // the ring is filled where this lay
    sync_block();
  }
};

}  // namespace tw::conv
