// SPDX-License-Identifier: Apache-2.0
// What a candidate of mma chooses, and what follows from it: how operands lie in shared memory. The kernel and the host
// read the same functions.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::gemm {

struct MmaKnobs {
  int block_m = 64, block_n = 64;  // of y, per block
  int block_k = 64;                // columns of a stage
  int warps_m = 2, warps_n = 2;    // that share a block's tile
  int stages = 3;                  // buffers in shared memory
  bool async_copy = true;          // cp.async: rows of plain operands start on 16 bytes
  int unit_x = 8;   // elements of plain x (and w) per register load, where they are not copied asynchronously
  int unit_w = 0;   // elements of coded w that divide k: what the alignment of its rows follows from
  int split_k = 1;  // blocks of a cluster that share a tile's k

  TW_MEMBER constexpr int threads() const { return 32 * warps_m * warps_n; }
};

// How an operand reaches the matrix units: plain elements go straight into a tile that they can read. Codes are copied
// as stored and unpacked a stage before their use, with scales (and terms, where w has minima) beside them. Blocks that
// the units scale themselves stay as stored.
enum class MmaForm { plain, codes, scaled };

TW_CONSTANTS(int, kScaledRowBytes = 128);  // of codes, in a stage's row of blocks that the units scale

struct MmaOperand {
  MmaForm form;
  int element_bytes;                   // in the tile
  int group = 0;                       // codes: elements under one scale of the unpacked tile
  bool terms = false;                  // codes: a float beside each scale
  int block, data_bytes, scale_bytes;  // of the format
  int raw_bytes = 0;                   // codes: of a stage's columns of a row, as stored
};

// A row of codes as copied: its data, padded so that rows read 16 bytes at a time fall into different banks. Rows of
// scales follow those of data.
struct CodeRows {
  int piece;        // bytes per copy
  int pitch;        // from one row's data to the next
  int scale_bytes;  // of a row
  int bytes;        // of all
};
// `unit`: elements that divide k.
TW_FN constexpr CodeRows code_rows(const MmaOperand& o, int rows, int block_k, int unit) {
  const int aligned = fmt::run_alignment(unit * o.data_bytes / o.block);
  const int piece = min2(o.block > block_k ? 16 : aligned, fmt::run_alignment(o.raw_bytes));
  const int pitch = piece == 16 ? (o.raw_bytes / 16 | 1) * 16 : o.raw_bytes;
  const int scales = o.scale_bytes ? block_k / o.block * o.scale_bytes : 0;
  return {piece, pitch, scales, (rows * (pitch + scales) + 15) / 16 * 16};
}

// One operand's share of shared memory.
struct MmaStaging {
  int row_bytes;   // of a row of the tile that the units read
  int ring_bytes;  // of a stage
  int floats;      // codes: scales of an unpacked tile; as many terms follow, where there are any
  int unpacked_bytes;
};
TW_FN constexpr MmaStaging mma_staging(const MmaOperand& o, int rows, int block_k, int unit) {
  if (o.form == MmaForm::scaled)
    return {kScaledRowBytes, rows * (kScaledRowBytes + block_k / o.block * o.scale_bytes), 0, 0};
  const int row_bytes = block_k * o.element_bytes;
  if (o.form == MmaForm::plain) return {row_bytes, rows * row_bytes, 0, 0};
  const int floats = block_k / o.group * rows;
  return {row_bytes, code_rows(o, rows, block_k, unit).bytes, floats,
          rows * row_bytes + 4 * floats * (o.terms ? 2 : 1)};
}

// Shared memory of a block: the ring, stage by stage x and w, then two unpacked tiles of each. Where k is split, sums
// take its place at the end, their rows padded against bank conflicts.
struct MmaPlan {
  MmaStaging x, w;
  int stage_bytes, unpacked_bytes, sums_pitch, shared_bytes;
};
TW_CONSTANTS(int, kUnitOfCodesX = 32);  // codes of x come in blocks of 32
TW_FN constexpr MmaPlan mma_plan(const MmaKnobs& k, const MmaOperand& x, const MmaOperand& w) {
  MmaPlan p{};
  p.x = mma_staging(x, k.block_m, k.block_k, kUnitOfCodesX);
  p.w = mma_staging(w, k.block_n, k.block_k, k.unit_w);
  p.stage_bytes = p.x.ring_bytes + p.w.ring_bytes;
  p.unpacked_bytes = p.x.unpacked_bytes + p.w.unpacked_bytes;
  p.sums_pitch = k.block_n + 4;
  p.shared_bytes =
      max2(k.stages * p.stage_bytes + 2 * p.unpacked_bytes, k.split_k > 1 ? k.block_m * p.sums_pitch * 4 : 0);
  return p;
}

}  // namespace tw::gemm
