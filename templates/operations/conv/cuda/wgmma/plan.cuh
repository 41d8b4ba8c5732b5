// SPDX-License-Identifier: Apache-2.0
// What a candidate of conv's wgmma chooses: a box of output pixels, whose input the copy engine reads in boxes, and how
// gemm's kernel multiplies it (operations/gemm/cuda/wgmma/plan.cuh). The kernel and the host read the same functions.
#pragma once
#include "operations/gemm/cuda/wgmma/plan.cuh"

namespace tw::conv {

TW_CONSTANTS(int, kHaloWidth = 8);                       // pixels side by side: a swizzle atom of 128-byte rows
TW_CONSTANTS(int, kBoxes = 2, kBoxesBesideFilters = 3);  // with halos, in shared memory; where w stays there

struct WgmmaKnobs {
  int box_w = 8, box_h = 32, box_d = 1, box_n = 1;            // output pixels of a tile, rows of them innermost
  int features = 128;                                         // output channels of a tile
  int strips = 1, warpgroups_n = 2, stages = 3, cluster = 1;  // as gemm's
  // Pixels are the matrix instruction's 64-row side, so that any eight output channels are; else channels are.
  bool swapped = false;
  // An input box serves all taps of a column of the kernel: it is as much higher than the box of output pixels, which
  // is kHaloWidth wide, as these taps reach. A tap's rows begin so many swizzle atoms behind the box' first.
  bool halo = false;
  bool resident = false;    // where halo: all of w stays in shared memory, a stage for each panel of each tap
  bool two_panels = false;  // of channels of a tap are a stage, where w comes as tiles; else one is, or one of each tap

  // What the problem decides:
  int kernel_h = 1, dilation_h = 1;  // where halo
  int channels = 1;                  // of x
  int element_bytes = 2;
  bool channels_first = false;              // of y and residual
  bool w_channels_first = false;            // as a launch passes w
  bool tiles = false;                       // w is packed (formats/shared/tiles.cuh), and unpacked in registers
  bool writes_x = false, writes_w = false;  // to the workspace first, from where boxes are read (prologue.cuh)
  int quant_block = 0;                      // where x is written: channels that are fake quantized together; 0: not
  bool unfolds = false;                     // x is written with a pixel for each of y, and what that one sees
  bool skips = false;                       // frames of zero padding, whose taps are left out
  bool fast_accumulation = false, async_store = false;  // as gemm's

  TW_MEMBER constexpr int pixels() const { return box_w * box_h * box_d * box_n; }
  TW_MEMBER constexpr int taps() const { return halo ? kernel_h : 1; }  // of a stage
  TW_MEMBER constexpr int halo_rows() const { return halo ? (kernel_h - 1) * dilation_h : 0; }
  TW_MEMBER constexpr int panel_k() const { return gemm::kPanelBytes / element_bytes; }
  TW_MEMBER constexpr int panels() const { return (channels + panel_k() - 1) / panel_k(); }  // of a tap
  TW_MEMBER constexpr int stage_panels() const { return two_panels ? 2 : 1; }                // of these

  // Input boxes are loaded by as many blocks as share them, each a part of the outermost of these extents beyond 1.
  TW_MEMBER constexpr int loaders() const { return swapped ? 1 : cluster; }
  TW_MEMBER constexpr int box(int axis) const {
    return axis == 0 ? box_w : axis == 1 ? box_h + halo_rows() : axis == 2 ? box_d : box_n;
  }
  TW_MEMBER constexpr int split_axis() const {
    int axis = 3;
    while (axis > 0 && box(axis) == 1) --axis;
    return axis;
  }
  TW_MEMBER constexpr int part(int axis) const { return box(axis) / (axis == split_axis() ? loaders() : 1); }

  TW_MEMBER constexpr gemm::WgmmaKnobs product() const {
    gemm::WgmmaKnobs k;
    k.block_m = swapped ? features : pixels();
    k.strips = strips, k.warpgroups_n = warpgroups_n;
    k.panels = taps() * stage_panels(), k.stages = stages, k.cluster = cluster, k.swapped = swapped;
    k.fast_accumulation = fast_accumulation, k.async_store = async_store, k.transposed = channels_first;
    if (halo) k.boxes = resident ? kBoxesBesideFilters : kBoxes, k.gathered_step = dilation_h * gemm::kSwizzleAtom;
    k.resident = resident;
    const int left = channels * element_bytes % gemm::kPanelBytes;  // bytes of a tap's last panel
    if (left) k.run = panels(), k.last_steps = (left + 31) / 32;
    return k;
  }
};

}  // namespace tw::conv
