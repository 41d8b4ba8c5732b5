// SPDX-License-Identifier: Apache-2.0
// What a candidate of wgmma chooses, and what follows from it: threads, registers and how shared memory is laid out.
// The kernel and the host read the same functions.
#pragma once
#include "backends/cuda/types.cuh"
#include "operations/gemm/cuda/wgmma/schedule.cuh"
#include "operations/gemm/cuda/wgmma/store/staging.cuh"

namespace tw::gemm {

// Up to this many tokens one tile holds them all and is small enough for several blocks per multiprocessor.
TW_CONSTANTS(int, kFewTokens = 64);

TW_CONSTANTS(int, kStripRows = 64);        // rows of the matrix instruction
TW_CONSTANTS(int, kPanelBytes = 128);      // of a row of an operand in shared memory: the width of a swizzled panel
TW_CONSTANTS(int, kSwizzleAtom = 1024);    // bytes after which the swizzle pattern repeats
TW_CONSTANTS(int, kPanelsPerCodeBox = 2);  // panels of x that one row of a box holds where x is blocks of codes
TW_CONSTANTS(int, kGroupBytes = 12);       // of an entry of the table of groups
TW_CONSTANTS(int, kRowPanels = 4);         // panels of a single token's codes that are multiplied at a time
TW_CONSTANTS(int, kRawStages = 2);         // stages of x as it is stored, where the producer widens it

struct WgmmaKnobs {
  int block_m = 64;      // tokens per tile: 8 to 256; or 1, whose row of x is every column of the matrix instruction
  int strips = 1;        // 64-row strips of w per warpgroup
  int warpgroups_n = 2;  // math warpgroups side by side along n
  int warpgroups_k = 1;  // math warpgroups that split each stage's panels
  int panels = 1;        // 128-byte panels of x's rows per stage
  int stages = 3;        // of the ring
  int cluster = 1;       // blocks per cluster
  int split_k = 1;       // 1, or `cluster`: blocks that split a tile's k
  // Single warps multiply with mma.sync: with few tokens the instructions around each product count, and these need
  // fewer (no descriptors, fences and waits).
  bool warp_mma = false;
  // Tokens are the 64-row side and block_m counts rows of w: other tiles then fill the last wave, and with block scales
  // and many tokens a thread reads the scales of two tokens per panel instead of block_m / 4.
  bool swapped = false;
  Schedule schedule = Schedule::whole_tiles;
  bool prologue = false;  // x is first written to the workspace as the matrix units take it (prologue.cuh)

  // What the problem decides:
  bool fast_accumulation = false;  // fp8: the matrix units sum over all of k, at some 14 bits; else over a panel
  bool async_store =
      false;                // finished tiles wait in shared memory, from where the warps beside the producer store them
  int quantized_bytes = 0;  // room for the row of x that a block quantizes itself; 0: x is not quantized here
  int groups = 0;           // room for as many groups (grouped_tiles.cuh); 0: an ordinary gemm

  // What a kernel decides whose x is gathered (gathered_rows.cuh):
  int boxes = 0;            // boxes of x in shared memory, each for all panels of a stage of k; 0: x comes with w
  int gathered_step = 0;    // bytes from one panel of a box to the next, which overlaps it
  bool resident = false;    // with boxes: the ring has a stage for each of w's, all loaded once and kept
  bool transposed = false;  // y and c have features first (store/transposed.cuh)
  int run = 1;              // stages of which the last has panels that are not full
  int last_steps = 4;       // of these: steps of k, 32 bytes each

  TW_MEMBER constexpr int block_n() const { return kStripRows * strips * warpgroups_n; }
  TW_MEMBER constexpr int columns() const { return max2(block_m, 8); }  // of the matrix instruction
  // Blocks of a cluster that take neighbouring tiles, so the same tokens.
  TW_MEMBER constexpr int neighbours() const { return split_k > 1 ? 1 : cluster; }
  TW_MEMBER constexpr int parts() const { return split_k * warpgroups_k; }  // of k, whose sums meet at the end
  TW_MEMBER constexpr int math_warpgroups() const { return warpgroups_n * warpgroups_k; }
  TW_MEMBER constexpr int math_threads() const { return 128 * math_warpgroups(); }
};

// What the plan depends on of the formats.
struct WgmmaOperands {
  bool coded;          // w comes as tiles (formats/shared/tiles.cuh), which math threads unpack into registers
  bool promotes;       // each panel's products leave the matrix units and are added to single-precision sums
  int panel_k;         // columns of k per panel
  int x_row_bytes;     // of x's row per panel in shared memory
  int x_raw_bytes;     // of it before the producer widens x; 0: x is multiplied as it arrives
  int x_item_bytes;    // of what x has per row (a scale, a zero point); 0: nothing
  int code_words = 0;  // coded: words of codes per thread and panel
  int scale_k = 0, scale_bytes = 0;  // coded: columns per chunk of scales, and bytes of a row's; 0: no such stream
  int y_bytes, c_bytes;              // of elements; 0: no c
};

// Rows of each of a tile's `boxes` boxes of `rows` rows, of a matrix with `all`: TensorMapPlan::clipped_rows().
TW_FN constexpr int clipped_rows(i64 all, int rows, int boxes) {
  return all >= i64{boxes} * rows ? rows : min2((static_cast<int>(all) + boxes - 1) / boxes + 7, rows + 7) / 8 * 8;
}

// Chunks of scales in a stage of block_k columns of k.
TW_FN constexpr int scale_chunks(int block_k, int scale_k, int scale_bytes) {
  return scale_bytes ? max2(1, block_k / scale_k) : 0;
}
// Bytes of a stage of w: plain rows, swizzled; or per strip its panels of codes, then its chunks of scales.
TW_FN constexpr int plain_stage_bytes(int block_n, int panels) { return panels * block_n * kPanelBytes; }
TW_FN constexpr int tile_stage_bytes(int strips, int panels, int code_words, int chunks, int scale_bytes) {
  const int bytes = strips * (panels * 512 * code_words + chunks * kStripRows * scale_bytes);
  return (bytes + kSwizzleAtom - 1) / kSwizzleAtom * kSwizzleAtom;
}

// Threads that write a row of x ahead, of a block's: four warps or three, if that divides them, else all.
TW_FN constexpr int prologue_row_threads(int threads) {
  return threads % 128 == 0 ? 128 : threads % 96 == 0 ? 96 : threads;
}
// A piece's number, and a float of each warp.
TW_FN constexpr int prologue_bytes(int threads) { return 4 + threads / 32 * 4; }

// Shared memory: the ring of stages, x before w in each; boxes of x, if there are any, and then a stage is a panel of
// w; stages of x that is widened; staging of the epilogue; the quantized row; a copy of x's row items for each
// warpgroup; barriers, then what the schedule keeps beside them; the table of groups; what a prologue needs, behind the
// barriers since the ring may be filled meanwhile.
struct WgmmaPlan {
  int accumulators;            // of a thread
  bool reallocates_registers;  // the producer is a warpgroup, which hands registers over to the math warpgroups
  int threads;
  int x_bytes, stage_bytes;  // of a stage
  int box_at, box_bytes;
  int raw_at, raw_bytes;   // of a stage of x that is widened
  int slice, slot_floats;  // where parts of k meet: rows of w that a block completes, sums of all parts of them
  int staging_at, staging_bytes, row_at, items_at, item_bytes, barriers_at, groups_at, prologue_at, shared_bytes;
};
TW_FN constexpr WgmmaPlan wgmma_plan(const WgmmaKnobs& k, const WgmmaOperands& o) {
  WgmmaPlan p{};
  p.accumulators = (k.strips + (o.promotes && !k.warp_mma ? 1 : 0)) * k.columns() / 2;
  p.reallocates_registers =
      k.math_warpgroups() == 3 || (k.math_warpgroups() == 2 && p.accumulators >= (o.coded ? 80 : 96));
  // One thread fills the ring by copies alone. To widen x takes a warp where tokens are few, else a warpgroup.
  p.threads = k.math_threads() + (p.reallocates_registers || (o.x_raw_bytes && !k.warp_mma) ? 128 : 32);

  // Of a stage: without x, or where that is called w (swapped), without w.
  const int x_panels = k.boxes == 0 ? k.panels : k.swapped ? 1 : 0, w_panels = k.boxes == 0 ? k.panels : 1 - x_panels;
  p.x_bytes = k.quantized_bytes ? 0 : (x_panels * k.block_m * o.x_row_bytes + 127) / 128 * 128;
  p.stage_bytes = p.x_bytes + (o.coded ? tile_stage_bytes(k.strips * k.warpgroups_n, k.panels, o.code_words,
                                                          scale_chunks(k.panels * o.panel_k, o.scale_k, o.scale_bytes),
                                                          o.scale_bytes)
                                       : plain_stage_bytes(k.block_n(), w_panels));
  p.box_at = k.stages * p.stage_bytes;
  p.box_bytes = k.boxes ? (k.swapped ? k.block_n() : k.block_m) * kPanelBytes + (k.panels - 1) * k.gathered_step : 0;
  p.slice = k.block_n() / k.split_k;
  p.slot_floats = k.parts() * k.columns() * p.slice;
  p.raw_at = p.box_at + k.boxes * p.box_bytes;
  p.raw_bytes = (k.panels * k.block_m * o.x_raw_bytes + 127) / 128 * 128;
  p.staging_at = p.raw_at + kRawStages * p.raw_bytes;
  p.staging_bytes = k.async_store   ? async_store_bytes(k.block_m, k.block_n(), k.swapped, o.y_bytes)
                    : k.parts() > 1 ? 2 * p.slot_floats * 4
                    : k.transposed  ? k.warpgroups_n * (k.swapped ? staging_bytes(k.columns(), o.y_bytes, 0)
                                                                  : 4 * swapped_staging_bytes(o.y_bytes, 0))
                    : k.swapped     ? 4 * k.warpgroups_n * swapped_staging_bytes(o.y_bytes, o.c_bytes)
                                    : k.warpgroups_n * staging_bytes(k.columns(), o.y_bytes, o.c_bytes);
  p.row_at = p.staging_at + p.staging_bytes;
  p.items_at = p.row_at + k.quantized_bytes;
  p.item_bytes = k.swapped ? 0 : k.math_warpgroups() * k.columns() * o.x_item_bytes;
  p.barriers_at = p.items_at + p.item_bytes;
  const bool stream_k = k.schedule == Schedule::stream_k, split = k.schedule == Schedule::split_last_wave;
  p.groups_at = p.barriers_at + 16 * (k.stages + k.boxes) + (o.x_raw_bytes ? 8 * kRawStages : 0) +
                (stream_k || k.async_store ? 16 * k.warpgroups_n
                 : k.parts() > 1 || split  ? 16
                                           : 0) +
                (k.schedule == Schedule::queue ? 4 * k.stages : 0);
  p.prologue_at = p.groups_at + (k.groups ? kGroupBytes * (k.groups + 1) : 0);
  p.shared_bytes = p.prologue_at + (k.prologue ? prologue_bytes(p.threads) : 0);
  return p;
}

}  // namespace tw::gemm
