// SPDX-License-Identifier: Apache-2.0
// The operation pack: weights reordered once, at load, for the kernels of gemms and convolutions with pack=tiles, or on
// CPUs pack=panels, which read them in that order. Lossless. One packed copy serves every number of rows.
//
//   pack w=q4_0 x=f16 n=4096 k=14336 [inverse=1]     for gemms with this w and x and pack=tiles
//   pack w=q4_0 x=q8_1 n=4096 k=14336 order=panels   for gemms with pack=panels
//
// Engine::pack() does it on the GPU; pack_weights() and unpack_weights() run on any machine, from any thread.
//
// Streams of a packed w:
//   data    the codes in tiles of 64 rows: as many bytes as they have bits
//   scales  what the format keeps beside its codes, in the order of the tiles; also for formats whose blocks hold their
//           scales. A format with a float per row keeps that stream as it is; mxfp4's are bf16 here, a byte more each
//   global  as it is
// In panels: `data`, 16 rows side by side, each block's codes and scales together, and `global` as it is.
//
// Of a grouped gemm, the streams of a stack of matrices, one behind the other. Its `global`, one float for each matrix,
// is what w has: Engine::pack() leaves it alone.
#pragma once

#include <cstdint>
#include <string_view>

#include <tilewright/export.h>
#include <tilewright/format.h>
#include <tilewright/gemm.h>

namespace tilewright {

// A weight matrix to tiles, or back. Both extents are fixed: a launch takes the whole matrix.
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
  MutableOperand tiles = {};  // the same matrix, packed, in tiles or panels. A null `global` is left alone
};

// Bytes of a stream of the problem's w, packed or not as the problem says; 0: it has none.
TILEWRIGHT_EXPORT std::int64_t packed_bytes(const Gemm& gemm, StreamName stream);

// From w as its format stores it to what the problem (pack=tiles or pack=panels) wants, and back; every stream is
// written. `global` may be null on both sides, or the same on both. Host pointers; one thread. Throws Error
// (invalid_argument) if the problem is not packed or a stream is null.
TILEWRIGHT_EXPORT void pack_weights(const Gemm& gemm, Operand from, MutableOperand to);
TILEWRIGHT_EXPORT void unpack_weights(const Gemm& gemm, Operand from, MutableOperand to);

}  // namespace tilewright
