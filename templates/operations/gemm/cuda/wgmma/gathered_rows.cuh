// SPDX-License-Identifier: Apache-2.0
// Where the warpgroup kernel's rows of x and y are. Those of a matrix lie one behind the other. Another kernel may
// gather them (operations/conv/cuda/wgmma/pixels.cuh): then x, which w is multiplied by, and the rows of y are what its
// class says, which has the members below, and
//
//   static void write_ahead(shape, memory, thread);   by all threads, before anything is loaded: `memory` is the ring's
//   struct Loader {                            the producer's, for the stages of a tile
//     Loader(shape, x0, w0, k_begin);          the tile's first rows of x and w, and its first stage
//     void load_x(to, barrier, rank);          a stage's panels of x, or the box that they lie in
//     void load_w(to, panel, barrier, rank);   its panels of w, or one of them if x comes in boxes; but no tiles
//     void advance();                          to the next stage
//   };
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gemm {

struct MatrixRows {
  TW_CONSTANTS(bool, kGathers = false);
  // The rows of a tile. row(i): that of y which is the tile's i-th; -1: it does not exist. Where y has features first,
  // transposed(i, feature): the element's place instead; adjacent(i, count): whether those of `count` rows adjoin.
  struct Tile {};
  // Tiles and stages of k, made of those of a matrix.
  template <class Matrix>
  struct TilesOf {
    using type = Matrix;
  };
};

}  // namespace tw::gemm
