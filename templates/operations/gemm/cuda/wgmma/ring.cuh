// SPDX-License-Identifier: Apache-2.0
// The ring of stages in shared memory through which the producer feeds the math warps: a `full` and an `empty` barrier
// for each stage. Producer and math warps each have a copy with their own position.
#pragma once
#include "backends/cuda/sm90.cuh"

namespace tw::gemm {

// By every math warp: what `empty` is for may be refilled. Told to every block that writes into it.
template <int MULTICAST>
TW_DEVICE void release_stage(u64* empty, int lane) {
  if constexpr (MULTICAST > 1) {
    if (lane < MULTICAST) barrier_arrive_remote(empty, static_cast<u32>(lane));
  } else {
    if (lane == 0) barrier_arrive(empty);
  }
}

// T: WgmmaTraits. Boxes of x, where it has some (WgmmaKnobs::boxes).
template <class T>
struct BoxRing {
  u8* boxes;
  u64* full;
  u64* empty;
  int box = 0;
  u32 phase = 0;

  TW_MEMBER void advance() {
    if (++box == T::kBoxes) box = 0, phase ^= 1u;
  }
  TW_MEMBER u8* x() const { return boxes + box * T::kBoxBytes; }
  TW_MEMBER void await_full() const { barrier_wait(full + box, phase); }
  TW_MEMBER void await_empty() const { barrier_wait(empty + box, phase); }
  TW_MEMBER void release(int b, int lane) const { release_stage<T::kBoxMulticast>(empty + b, lane); }
};

// T: WgmmaTraits.
template <class T>
struct StageRing {
  u8* stages;
  u64* full;
  u64* empty;
  u32* tiles = nullptr;  // Schedule::queue: the number of the tile that starts with a stage
  int stage = 0;
  u32 phase = 0;
  const u8* row = nullptr;  // the quantized row of x, from stage row_begin of k on
  u32 row_begin = 0;
  BoxRing<T> boxes = {};

  TW_MEMBER void advance() {
    if (++stage == T::kStages) stage = 0, phase ^= T::kResident ? 0u : 1u;
  }
  TW_MEMBER u8* x() const { return stages + stage * T::kStageBytes; }
  TW_MEMBER u8* w() const { return x() + T::kXBytes; }
  TW_MEMBER void await_full() const { barrier_wait(full + stage, phase); }
  TW_MEMBER void await_empty() const { barrier_wait(empty + stage, phase); }

  // By every math warp: stage `s` may be refilled. Told to every block that writes into it.
  TW_MEMBER void release(int s, int lane) const {
    if constexpr (T::kResident) return;
    if constexpr (T::kWarpMma)
      sync_warp();  // other lanes read codes with ordinary loads
    else
      converge_warp();
    release_stage<T::kRingMulticast>(empty + s, lane);
  }
};

}  // namespace tw::gemm
