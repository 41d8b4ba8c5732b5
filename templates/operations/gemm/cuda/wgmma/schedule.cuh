// SPDX-License-Identifier: Apache-2.0
// How the persistent blocks of a warpgroup kernel share the tiles of y, above all those of a last wave that does not
// fill the chip. The kernel and the host read this file.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::gemm {

enum class Schedule {
  // Every tile is computed by one block, or by one cluster that splits its k.
  whole_tiles,
  // If half of the clusters or fewer would get a tile in the last wave, two blocks of a cluster split the k of such a
  // tile and exchange their sums through distributed shared memory.
  split_last_wave,
  // Stream-K: the stages of the last wave's tiles, concatenated, are dealt to the clusters in equal shares, which come
  // first. Partial sums of a tile meet in the caller's workspace (operations/gemm/cuda/wgmma/stream_k.cuh).
  stream_k,
  // For few tokens: a block takes every tile but its first from a counter that all blocks share, the first word of the
  // caller's workspace (operations/gemm/cuda/wgmma/tile_scheduler.cuh). Multiprocessors then finish together although
  // they run
  // different numbers of blocks. Clusters have one block.
  queue,
};

TW_CONSTANTS(int, kMaxParts = 15);  // of a tile: as many as a word of stream_k.cuh has bits for
// Words at the start of the workspace, zero whenever a kernel starts: those of stream_k and queue, then four of the
// prologue's.
TW_CONSTANTS(int, kScheduleBytes = 16384, kTileWordBytes = kScheduleBytes - 16);

// Bytes of one partial result: the single-precision sums of a cluster's tiles.
TW_FN constexpr i64 stream_k_slot_bytes(int cluster, int block_m, int block_n) {
  return static_cast<i64>(cluster) * block_m * block_n * 4;
}

}  // namespace tw::gemm
