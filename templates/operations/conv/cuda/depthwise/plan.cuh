// SPDX-License-Identifier: Apache-2.0
// What a candidate of conv's depthwise chooses: the tile of output pixels of a block. The kernel and the host read the
// same functions.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::conv {

struct DepthwiseKnobs {
  int tile_h = 16, tile_w = 64, images = 1;  // output pixels; frames are images too
  int warps = 8;

  // What the problem decides:
  int kernel_h = 1, kernel_w = 1, dilation_h = 1, dilation_w = 1;

  static constexpr int kChannels = 32;  // of a block: 64 bytes of a pixel
  // A row of a filter as a matrix has 16 rows, for the columns that eight outputs see, and those are two blocks of 8.
  static constexpr int kMostReach = 8;

  TW_MEMBER constexpr int threads() const { return 32 * warps; }
  TW_MEMBER constexpr int taps() const { return kernel_h * kernel_w; }
  TW_MEMBER constexpr int rows() const { return images * tile_h; }
  TW_MEMBER constexpr int row_tiles() const { return ceil_div(rows(), 16); }
  TW_MEMBER constexpr int column_tiles() const { return tile_w / 8; }
  TW_MEMBER constexpr int seen_h() const { return tile_h + (kernel_h - 1) * dilation_h; }
  TW_MEMBER constexpr int seen_blocks() const { return column_tiles() + 1; }  // of eight columns

  // Shared memory, in bytes: for each channel a plane of rows, then weights. A row is an odd number of 16 bytes, and a
  // plane 16 bytes more than whole banks, so that a block of eight columns of eight rows, or of eight channels, lies in
  // different banks.
  TW_MEMBER constexpr int row_bytes() const { return 16 * (seen_blocks() | 1); }
  TW_MEMBER constexpr int image_bytes() const { return seen_h() * row_bytes(); }
  TW_MEMBER constexpr int plane_bytes() const { return ceil_div(images * image_bytes(), 128) * 128 + 16; }
  TW_MEMBER constexpr int weights_at() const { return kChannels * plane_bytes(); }
  TW_MEMBER constexpr int shared_bytes() const { return weights_at() + kChannels * taps() * 2; }
};

}  // namespace tw::conv
