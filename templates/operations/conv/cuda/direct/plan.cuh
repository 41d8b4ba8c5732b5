// SPDX-License-Identifier: Apache-2.0
// What a candidate of conv's direct chooses: the output pixels and channels that a thread sums in registers, and the
// block of such threads that shares input and weights. The kernel and the host read the same functions.
#pragma once
#include "backends/cuda/types.cuh"
#include "formats/shared/format.cuh"

namespace tw::conv {

struct DirectKnobs {
  // Of a thread: channel groups, output channels of each, and output pixels.
  int groups = 1, features = 1, tile_w = 4, tile_h = 1;
  // Of a block: threads along groups, width and height. Lanes run along the innermost axis of x first.
  int threads_c = 32, threads_w = 4, threads_h = 1;
  // All kernel rows are unrolled with their weights in registers, so that an input row is read once for all output rows
  // that need it. Otherwise kernel rows follow each other in a loop.
  bool whole = false;

  // What the problem decides:
  int group_in = 1, group_out = 1;  // channels of a group
  int kernel_d = 1, kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int element_bytes = 2;        // of x
  bool channels_first = false;  // x and y
  bool mirrors = false;         // an axis within a frame is padded by others than zeros
  bool cached = false;          // the first elements of an axis come from another tensor
  int rows = 1;                 // kernel rows of a stage
  int piece = 1;                // elements of x that are copied together: whole pieces lie in a row
  int first = 0;                // channels_first: elements of the first piece in front of what a block needs
  int run = 1;                  // elements of y that are stored together
  bool async_copy = false;
  int tiles_c = 0, tiles_w = 0, tiles_h = 0, frames = 0;  // blocks along each; 0: the shape says so

  TW_MEMBER constexpr int threads() const { return threads_c * threads_w * threads_h; }
  TW_MEMBER constexpr int block_w() const { return threads_w * tile_w; }
  TW_MEMBER constexpr int block_h() const { return threads_h * tile_h; }
  TW_MEMBER constexpr int block_groups() const { return threads_c * groups; }
  TW_MEMBER constexpr int parts() const { return ceil_div(group_out, features); }  // of a group's output channels
  TW_MEMBER constexpr int inputs() const { return groups * group_in; }             // channels of a thread
  TW_MEMBER constexpr int outputs() const { return groups * features; }
  TW_MEMBER constexpr int stages() const { return kernel_d * ceil_div(kernel_h, rows); }

  // The input that a thread reads for one of its output rows, and a block for a stage.
  TW_MEMBER constexpr int span() const { return (tile_w - 1) * stride_w + (kernel_w - 1) * dilation_w + 1; }
  TW_MEMBER constexpr int step() const { return tile_w * stride_w; }  // from a thread's first column to the next's
  TW_MEMBER constexpr int columns() const { return (threads_w - 1) * step() + span(); }
  TW_MEMBER constexpr int tile_rows() const { return (tile_h - 1) * stride_h + (rows - 1) * dilation_h + 1; }
  TW_MEMBER constexpr int input_rows() const { return (threads_h - 1) * tile_h * stride_h + tile_rows(); }
  // Whether a column of the span, and a row of tile_rows(), meets a tap at all.
  TW_MEMBER constexpr bool needs_column(int column) const {
    for (int s = 0; s < kernel_w; ++s)
      if (column >= s * dilation_w && (column - s * dilation_w) % stride_w == 0 &&
          (column - s * dilation_w) / stride_w < tile_w)
        return true;
    return false;
  }
  TW_MEMBER constexpr bool needs_row(int row) const {
    for (int r = 0; r < rows; ++r)
      if (row >= r * dilation_h && (row - r * dilation_h) % stride_h == 0 && (row - r * dilation_h) / stride_h < tile_h)
        return true;
    return false;
  }

  // Shared memory, in bytes: x as [row][column][channel] or [channel][row][column], then weights as floats, for each
  // tap and input channel of a group those of the block's output channels.
  TW_MEMBER constexpr int block_inputs() const { return threads_c * inputs(); }
  TW_MEMBER constexpr int block_outputs() const { return threads_c * outputs(); }
  TW_MEMBER constexpr int column_bytes() const {
    return channels_first ? element_bytes : block_inputs() * element_bytes;
  }
  // Behind each thread's step of columns: where a warp spans several, their lanes then reach different banks.
  TW_MEMBER constexpr int skew() const {
    const int bytes = column_bytes();
    if (channels_first || bytes >= 128 || bytes % 16 != 0) return 0;
    return (bytes + 128 - step() % 8 * bytes % 128) % 128;
  }
  TW_MEMBER constexpr int step_bytes() const { return step() * column_bytes() + skew(); }
  TW_MEMBER constexpr int column_at(int column) const { return column * column_bytes() + column / step() * skew(); }
  TW_MEMBER constexpr int copied_columns() const {
    return channels_first ? ceil_div(first + columns(), piece) * piece : columns();
  }
  TW_MEMBER constexpr int row_bytes() const {
    return ceil_div(column_at(copied_columns() - 1) + column_bytes(), 16) * 16;
  }
  TW_MEMBER constexpr int plane_bytes() const { return input_rows() * row_bytes(); }
  TW_MEMBER constexpr int input_bytes() const { return plane_bytes() * (channels_first ? block_inputs() : 1); }
  TW_MEMBER constexpr int stage_taps() const { return rows * kernel_w; }
  TW_MEMBER constexpr int weight_pitch() const { return block_outputs() + outputs(); }  // floats; spreads banks
  TW_MEMBER constexpr int weight_bytes() const { return stage_taps() * group_in * weight_pitch() * 4; }
  TW_MEMBER constexpr int shared_bytes() const { return input_bytes() + weight_bytes(); }

  // Columns of pieces, which threads copy row by row.
  TW_MEMBER constexpr int items() const {
    return channels_first ? block_inputs() * (copied_columns() / piece) : columns() * (block_inputs() / piece);
  }
};

}  // namespace tw::conv
