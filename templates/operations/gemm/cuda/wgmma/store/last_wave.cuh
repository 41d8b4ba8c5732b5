// SPDX-License-Identifier: Apache-2.0
// Schedule::split_last_wave: two blocks of a cluster have a tile's sums over their parts of k. Each sends the sums of
// one warpgroup to the other block, where the same warpgroup adds them to its own and stores the result. They arrive in
// the ring, once that block has finished multiplying.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/gemm/cuda/wgmma/schedule.cuh"

namespace tw::gemm {

template <class T>
struct LastWave {
  using Sum = typename T::Sum;
  using Sums = typename T::Sums;
  TW_CONSTANTS(int, kStrips = T::kStrips, kSums = T::kSums);

  // Returns where this thread finds the neighbour's sums if it completes the tile.
  TW_MEMBER static const u32* exchange(u8* ring, u64* neighbour_done, u64* arrived, const Sums& sums, bool completes,
                                       int thread) {
    constexpr u32 kBytes = kStrips * kSums * 128 * 4;
    static_assert(kBytes <= T::kRingBytes, "the ring has room for the sums of one warpgroup");
    const u32 neighbour = 1u - cluster_rank();
    u32* place =
        reinterpret_cast<u32*>(ring) + thread % 128;  // a warp's words lie side by side; scattered they take 30 us
    converge_warp();
    if (thread % 32 == 0) barrier_arrive_remote(neighbour_done, neighbour);
    if (completes) {
      if (thread % 128 == 0) barrier_expect(arrived, kBytes);
      barrier_wait(arrived, 0);
    } else {
      barrier_wait(neighbour_done, 0);
      const ClusterAddress to(place, neighbour), signal(arrived, neighbour);
      TW_UNROLL for (int s = 0; s < kStrips; ++s) TW_UNROLL for (int i = 0; i < kSums; ++i)
          store_cluster_async(to, static_cast<u32>((s * kSums + i) * 512), bits_as<float>(sums[s][i]), signal);
    }
    return place;
  }
  // Four sums of this thread plus the neighbour's, if there are any.
  TW_MEMBER static void whole(Sum (&to)[4], const Sums& sums, int s, int i, const u32* others) {
    TW_UNROLL for (int j = 0; j < 4; ++j) {
      to[j] = sums[s][4 * i + j];
      if (T::schedule() == Schedule::split_last_wave && others)
        to[j] += bits_as<Sum>(others[(s * kSums + 4 * i + j) * 128]);
    }
  }
};

}  // namespace tw::gemm
