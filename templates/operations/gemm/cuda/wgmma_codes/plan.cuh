// SPDX-License-Identifier: Apache-2.0
// What a candidate of wgmma_codes chooses, and how shared memory is laid out. The kernel and the host read the same
// functions.
#pragma once
#include "operations/gemm/cuda/wgmma/plan.cuh"

namespace tw::gemm {

struct WgmmaCodesKnobs {
  int block_m = 128;     // tokens per tile
  int strips = 1;        // 64-row strips of w per math warpgroup
  int warpgroups_n = 2;  // math warpgroups, along n
  // A matrix instruction has block_m / pieces columns. The results of two are held at a time: those of one are scaled
  // while the matrix units compute the other's.
  int pieces = 2;
  int stages = 3;  // of 128 columns of k, in the ring

  TW_MEMBER constexpr int block_n() const { return kStripRows * strips * warpgroups_n; }
  TW_MEMBER constexpr int math_threads() const { return 128 * warpgroups_n; }
  TW_MEMBER constexpr int threads() const { return math_threads() + 128; }
};

TW_CONSTANTS(int, kCodesStageK = 128, kCodesPanels = 2);  // columns and panels of a stage
TW_CONSTANTS(int, kCodesGroup = 32);                      // columns under one scale of x

// What the plan depends on of the formats.
struct WgmmaCodesOperands {
  int code_words, scale_k, scale_bytes;  // of w's tiles (formats/shared/tiles.cuh)
  bool minima;                           // w has minima, which take sums of x's codes
  int raw_bytes;                         // of x's row per stage, as stored
  int y_bytes, c_bytes;                  // of elements; 0: no c
};

// Shared memory: the ring of operands, x before w in each stage; x's scales, and sums of codes times scales if w has
// minima, stage by stage; blocks of x as stored; staging of the epilogue; barriers.
struct WgmmaCodesPlan {
  int stage_bytes, scale_bytes;  // of a stage
  int scales_at, raw_at, staging_at, staging_bytes, barriers_at, shared_bytes;
};
TW_FN constexpr WgmmaCodesPlan wgmma_codes_plan(const WgmmaCodesKnobs& k, const WgmmaCodesOperands& o) {
  WgmmaCodesPlan p{};
  p.stage_bytes = kCodesPanels * k.block_m * kPanelBytes +
                  tile_stage_bytes(k.strips * k.warpgroups_n, kCodesPanels, o.code_words,
                                   scale_chunks(kCodesStageK, o.scale_k, o.scale_bytes), o.scale_bytes);
  p.scale_bytes = kCodesStageK / kCodesGroup * k.block_m * 4 * (o.minima ? 2 : 1);
  p.scales_at = k.stages * p.stage_bytes;
  p.raw_at = p.scales_at + k.stages * p.scale_bytes;
  p.staging_at = p.raw_at + kRawStages * k.block_m * o.raw_bytes;
  p.staging_bytes = k.warpgroups_n * staging_bytes(k.block_m, o.y_bytes, o.c_bytes);
  p.barriers_at = p.staging_at + p.staging_bytes;
  p.shared_bytes = p.barriers_at + 16 * k.stages + 8 * kRawStages;
  return p;
}

}  // namespace tw::gemm
