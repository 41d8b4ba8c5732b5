// SPDX-License-Identifier: Apache-2.0
// Plain floats to any format whose blocks know nothing of their row. A lane holds `lane_elements` neighbouring
// elements, read with 16-byte loads; neighbouring lanes form a block and agree on its scale by shuffles
// (Y::encode_lanes); the encoded bytes pass through shared memory so that the global stores are 16 bytes wide whatever
// a block's size is.
#pragma once
#include "backends/cuda/runs.cuh"
#include "operations/cast/params.cuh"
#include "operations/cast/stochastic.cuh"

namespace tw::cast {

template <class X, class Y, int threads, int lane_elements, int passes, bool stochastic = false>
struct Encode {
  using T = typename X::Element;
  TW_CONSTANTS(int, kThreads = threads);
  TW_CONSTANTS(int, kTile = threads * lane_elements * passes);  // elements
  TW_CONSTANTS(int, kBlocks = kTile / Y::kBlock);
  TW_CONSTANTS(int, kData = kBlocks * Y::kDataBytes, kScales = kBlocks * Y::kScaleBytes);
  TW_CONSTANTS(int, kSharedBytes = kData + kScales);
  TW_CONSTANTS(int, kWords = lane_elements * sizeof(T) / 4);
  TW_CONSTANTS(int, kLanes = Y::kBlock > lane_elements ? Y::kBlock / lane_elements : 1);  // of one block
  static_assert(!Y::kRowScale && kTile % Y::kBlock == 0 && kData % 16 == 0 && kScales % 16 == 0, "aligned tiles");

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const i64 start = static_cast<i64>(block_x()) * kTile;
    const i64 left = args.rows * shape.cols - start;
    if (left <= 0) return;
    begin_in_turn();
    const int thread = static_cast<int>(thread_x());
    u8* shared = dynamic_shared();

    u32 words[passes][kWords];
    TW_UNROLL for (int p = 0; p < passes; ++p) {
      const int at = (p * threads + thread) * lane_elements;
      // A block is there or not: no lane of one with several lanes or elements sees a part of it.
      const i64 count = Y::kBlock >= lane_elements ? (at < left ? lane_elements : 0) : left - at;
      load_elements<T, lane_elements>(words[p], static_cast<const u8*>(args.x.data) + (start + at) * sizeof(T), count);
    }
    const float context = tensor_scale<Y>(args.y.global);
    TW_UNROLL for (int p = 0; p < passes; ++p) {
      const int at = (p * threads + thread) * lane_elements, block = at / Y::kBlock;
      float v[lane_elements];
      to_floats<T, lane_elements>(v, words[p]);
      Y::template encode_lanes<lane_elements>(v, thread % kLanes, shared + block * Y::kDataBytes,
                                              shared + kData + block * Y::kScaleBytes, context, shape.encoder);
      if constexpr (stochastic) {
        sync_warp();  // one lane has written the scale
        TW_UNROLL for (int i = 0; i < lane_elements; i += 4) {
          u32 random[4];
          random_words(random, (start + at + i) / 4, args.seed);
          TW_UNROLL for (int j = i; j < i + 4; ++j) {
            const int b = (at + j) / Y::kBlock;
            fmt::round_stochastically<Y>(shared + b * Y::kDataBytes, shared + kData + b * Y::kScaleBytes, context,
                                         (at + j) % Y::kBlock, v[j], random[j % 4], shape.encoder);
          }
        }
      }
    }
    sync_block();

    const i64 first = start / Y::kBlock;
    const int blocks = static_cast<int>(min2(left, static_cast<i64>(kTile)) / Y::kBlock);
    tile_to_global<threads, kData>(static_cast<u8*>(args.y.data) + first * Y::kDataBytes, shared,
                                   blocks * Y::kDataBytes);
    if constexpr (kScales > 0)
      tile_to_global<threads, kScales>(static_cast<u8*>(args.y.scales) + first * Y::kScaleBytes, shared + kData,
                                       blocks * Y::kScaleBytes);
  }
};

}  // namespace tw::cast
