// SPDX-License-Identifier: Apache-2.0
// What becomes of the tiles of a last round that is not full, in a kernel of persistent blocks: for the kernel and for
// the host.
#pragma once
#include "core/types.cuh"

namespace tw::gemm {

constexpr int kNoTail = 0;  // tiles like all others
// Where there are some for half of the clusters or fewer, a cluster takes one and its two blocks split k.
constexpr int kClusterTail = 1;
// Stream-K: their stages, one tile's after the other's, go to the clusters in equal shares, which come first. Sums of
// parts of a tile meet in the caller's workspace (gemm/wgmma/stream_k.cuh).
constexpr int kStreamK = 2;
// Of few tokens: a block takes its tiles from a queue that all share, but for its first: a word at the begin of the
// caller's workspace counts them (gemm/wgmma/tile_scheduler.cuh). Then multiprocessors end together, whichever blocks
// they got. Clusters are of one.
constexpr int kQueue = 3;

constexpr int kMostParts = 15;  // of a tile: as many as a word of stream_k.cuh has bits for
constexpr int kTailWordBytes =
    16384;  // of kStreamK and kQueue, at the workspace's begin; zeros, whenever a kernel begins

// What a cluster puts down of a part: single-precision sums of its blocks' tiles.
TW_FN constexpr i64 stream_k_slot_bytes(int cluster, int bm, int bn) { return static_cast<i64>(cluster) * bm * bn * 4; }

}  // namespace tw::gemm
