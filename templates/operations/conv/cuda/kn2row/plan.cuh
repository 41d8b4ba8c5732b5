// SPDX-License-Identifier: Apache-2.0
// What a candidate of conv's kn2row chooses: the tile of output pixels of a block, its warps, and how its input
// arrives. The kernel and the host read the same functions.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::conv {

struct Kn2rowKnobs {
  int tile_h = 8, tile_w = 16, warps = 4;  // output pixels of a frame; a thread has tile_h tile_w / (32 warps) of them
  int chunk = 32, stages = 3;              // channels of a stage of copies, and stages in shared memory
  int frames = 0;                          // output frames of a block, one after another; 0: all

  // What the problem decides:
  int channels = 32, features = 3;
  int kernel_d = 1, kernel_h = 1, kernel_w = 1, dilation_h = 1, dilation_w = 1;

  TW_MEMBER constexpr int threads() const { return 32 * warps; }
  TW_MEMBER constexpr int own_pixels() const { return tile_h * tile_w / threads(); }
  // Where the unit-th 32 of them are. Lanes that are not of one row are of rows far apart: of 16 x 8 pixels that see
  // 18 x 10, every fourth, which lie in different banks.
  TW_MEMBER constexpr int apart() const { return tile_w < 32 ? tile_h * tile_w / 32 : 1; }
  TW_MEMBER constexpr int own_row(int unit, int lane) const {
    return tile_w < 32 ? lane / tile_w * apart() + unit : unit / (tile_w / 32);
  }
  TW_MEMBER constexpr int own_column(int unit, int lane) const {
    return tile_w < 32 ? lane % tile_w : unit % (tile_w / 32) * 32 + lane;
  }

  // The product of a frame: for each frame of the kernel, a row for each of its taps and output channels, in whole
  // tiles; a column for each pixel that the tile's outputs see.
  TW_MEMBER constexpr int frame_taps() const { return kernel_h * kernel_w; }
  TW_MEMBER constexpr int frame_rows() const { return frame_taps() * features; }
  TW_MEMBER constexpr int frame_tiles() const { return ceil_div(frame_rows(), 16); }
  TW_MEMBER constexpr int row_tiles() const { return kernel_d * frame_tiles(); }
  TW_MEMBER constexpr int seen_h() const { return tile_h + (kernel_h - 1) * dilation_h; }
  TW_MEMBER constexpr int seen_w() const { return tile_w + (kernel_w - 1) * dilation_w; }
  TW_MEMBER constexpr int seen() const { return seen_h() * seen_w(); }
  TW_MEMBER constexpr int pixel_tiles() const { return ceil_div(ceil_div(seen(), 8), warps); }  // of a warp
  TW_MEMBER constexpr int pixels() const { return 8 * warps * pixel_tiles(); }                  // some of them none
  TW_MEMBER constexpr int chunks() const { return ceil_div(channels, chunk); }
  // Rows of a finished frame are added to its outputs so many tiles at a time.
  TW_MEMBER constexpr int round_tiles() const { return frame_tiles() < 2 ? frame_tiles() : 2; }
  TW_MEMBER constexpr int rounds() const { return ceil_div(frame_tiles(), round_tiles()); }

  // Shared memory, in bytes: weights, stages, rows of the product, two tables of where each pixel is. A row of 16-bit
  // elements ends in 16 bytes more, so that eight neighbours' pieces lie in different banks; a row of the product, 8
  // floats before whole banks, so that pairs of four neighbours do.
  TW_MEMBER constexpr int weight_pitch() const { return chunks() * chunk * 2 + 16; }
  TW_MEMBER constexpr int weight_bytes() const { return row_tiles() * 16 * weight_pitch(); }
  TW_MEMBER constexpr int pixel_pitch() const { return chunk * 2 + 16; }
  TW_MEMBER constexpr int stage_bytes() const { return pixels() * pixel_pitch(); }
  TW_MEMBER constexpr int product_pitch() const { return ceil_div(pixels() - 8, 32) * 32 + 8; }
  TW_MEMBER constexpr int product_bytes() const { return round_tiles() * 16 * product_pitch() * 4; }
  TW_MEMBER constexpr int stage_at(int stage) const { return weight_bytes() + stage * stage_bytes(); }
  TW_MEMBER constexpr int product_at() const { return stage_at(stages); }
  TW_MEMBER constexpr int places_at() const { return product_at() + product_bytes(); }
  TW_MEMBER constexpr int shared_bytes() const { return places_at() + 2 * pixels() * 4; }
};

}  // namespace tw::conv
