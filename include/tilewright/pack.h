// SPDX-License-Identifier: Apache-2.0
// The operation pack reorders weights once, at load, for the kernels of gemms and convolutions with pack=tiles or, on
// CPUs, pack=panels, which read the weights in that order. It is lossless. One packed copy serves every number of rows.
//
//   pack w=q4_0 x=f16 n=4096 k=14336 [inverse=1]     for gemms with this w and x and pack=tiles
//   pack w=q4_0 x=q8_1 n=4096 k=14336 order=panels   for gemms with pack=panels
//
// Engine::pack() does it on the GPU; pack_weights() and unpack_weights() run on any machine, from any thread.
//
// Streams of a packed w:
//   data    the codes in tiles of 64 rows: as many bytes as they have bits
//   scales  the scales, in the order of the tiles, also for formats whose blocks contain their scales. A stream with a
//           float per row is unchanged. The scales of mxfp4 are bf16 here, one byte more each
//   global  as it is
// In panels, `data` has 16 rows side by side, with each block's codes and scales together. `global` is unchanged.
//
// For a grouped gemm, the streams of a stack of matrices follow each other. `global`, one float for each matrix, is
// that of w; Engine::pack() does not write it.
#pragma once

#include <cstdint>
#include <string_view>

#include <tilewright/export.h>
#include <tilewright/format.h>
#include <tilewright/gemm.h>

namespace tilewright {

// Packs a weight matrix, or unpacks it. Both extents are fixed: a launch processes the whole matrix.
struct Pack {
  static constexpr std::string_view kOperation = "pack";

  Format w, x;  // of the gemms that will take it
  std::int64_t n = 0, k = 0;
  bool inverse = false;  // from tiles (or panels) to w
  Packing order = Packing::tiles;
  friend bool operator==(const Pack&, const Pack&) = default;
};

// What a launch passes. Standard layout, as templates/operations/pack/params.cuh. Device pointers, 16-byte aligned.
struct PackArgs {
  static constexpr std::string_view kOperation = "pack";

  MutableOperand w = {};      // [n, k], as its format stores it; read, or written by an inverse pack
  MutableOperand tiles = {};  // the same matrix, packed in tiles or panels. If `global` is null, it is not written
};

// Size in bytes of a stream of the problem's w, packed if the problem says so; 0: there is no such stream.
TILEWRIGHT_EXPORT std::int64_t packed_bytes(const Gemm& gemm, StreamName stream);

// Converts w from its format's order to the order of the problem (pack=tiles or pack=panels), and back. Writes every
// stream. `global` may be null on both sides, or the same pointer on both. Host pointers; runs in one thread. Throws
// Error (invalid_argument) if the problem is not packed or a stream is null.
TILEWRIGHT_EXPORT void pack_weights(const Gemm& gemm, Operand from, MutableOperand to);
TILEWRIGHT_EXPORT void unpack_weights(const Gemm& gemm, Operand from, MutableOperand to);

}  // namespace tilewright
