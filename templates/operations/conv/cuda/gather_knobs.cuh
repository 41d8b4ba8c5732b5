// SPDX-License-Identifier: Apache-2.0
// What a convolution decides of how mma gathers x and stores y. The kernel and the host read the same struct.
#pragma once
#include "backends/cuda/types.cuh"

namespace tw::conv {

// How a thread that loads elements finds the taps of its pixels.
//   all     no padding: every tap is in x, and offsets within an image are the same for every pixel
//   zeros   zero padding: the same, with a bit for each place of the kernel on each axis, set if it is in x
//   table   any padding and a cache: a table in shared memory of where each place of the kernel on each axis is
enum class Taps : i32 { all, zeros, table };

struct GatherKnobs {
  int unit = 0;                 // channels per load; 0: pieces of 16 bytes, copied asynchronously where the target can
  bool taps_innermost = false;  // a row of w is channels with the kernel's taps of each, instead of taps with channels
  Taps taps = Taps::all;        // as all that follow, where unit is not 0
  int places = 0;               // Taps::table: of the kernel on the three axes together
  bool cached = false;          // Taps::table: leading elements of the first axis are in a tensor of their own
  bool y_channels_first = false;
  bool grouped = false;  // each group of channels has blocks of its own
  int quant_block = 0;   // columns of x that are fake quantized together, from the first on; 0: it is not

  // Stages whose columns are fake quantized together.
  TW_MEMBER constexpr int quant_stages(int block_k) const { return (quant_block + block_k - 1) / block_k; }

  // Bytes of shared memory behind gemm's.
  TW_MEMBER constexpr int table_bytes(int block_m) const { return taps == Taps::table ? 4 * places * block_m : 0; }
};

// Places of the kernel that have bits. One more stands for columns beyond the last.
TW_CONSTANTS(int, kMostBits = 31);
// The host checks that pixels of an image are fewer; the bit says that a place is in the cache.
TW_CONSTANTS(int, kInCache = 1 << 30);

}  // namespace tw::conv
