// SPDX-License-Identifier: Apache-2.0
// Depthwise convolutions by matrix units. A row of a channel's filter is a banded (Toeplitz) matrix: 16 columns of an
// input row times it are what that filter row adds to eight columns of an output row. So 16 output rows by eight
// columns of a channel take a matrix instruction for each filter row, whose A are the 16 input rows beside it. Half
// of the products are with zeros, or more; the units are ten times as fast as single-precision FMAs, so what bounds
// is memory.
//
// A needs a channel's pixels side by side. Warps load eight pixels of 32 channels, transpose them in registers and keep
// planes of channels in shared memory; outputs take the place of inputs that are no longer read, and are transposed on
// their way to y. Blocks take tiles in turns.
#pragma once
#include "backends/cuda/fragments.cuh"
#include "operations/conv/cuda/depthwise/plan.cuh"
#include "operations/conv/cuda/product.cuh"
#include "operations/conv/params.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/operands.cuh"

namespace tw::conv {

template <class X, class W, class Epi, const DepthwiseKnobs& knobs>
struct Depthwise {
  using T = typename X::Element;
  using Y = typename Epi::Out;
  static_assert(same<T, typename W::Element>() && sizeof(T) == 2 && sizeof(Y) == 2 && !Epi::kC, "16-bit floats");
  TW_CONSTANTS(int, kThreads = knobs.threads(), kSharedBytes = knobs.shared_bytes());
  TW_CONSTANTS(int, kChannels = DepthwiseKnobs::kChannels, kTapsH = knobs.kernel_h, kTapsW = knobs.kernel_w);
  static_assert((kTapsW - 1) * knobs.dilation_w <= DepthwiseKnobs::kMostReach, "two blocks of columns");
  static_assert(knobs.tile_w % 8 == 0 && kChannels % knobs.warps == 0, "whole tiles");

  struct Place {
    i32 channel, row, column;  // the first of the block's outputs
    i64 image;
  };
  TW_MEMBER static i64 images_of(const Shape& shape) { return shape.n * shape.axes[0].out; }
  TW_MEMBER static u32 tiles_of(const Shape& shape) {
    return static_cast<u32>(ceil_div64(images_of(shape), knobs.images)) *
           static_cast<u32>(ceil_div(shape.axes[1].out, knobs.tile_h)) *
           static_cast<u32>(ceil_div(shape.axes[2].out, knobs.tile_w)) * static_cast<u32>(ceil_div(shape.c, kChannels));
  }
  TW_MEMBER static Place place_of(const Shape& shape, u32 tile) {
    TileNumber number{tile};
    Place p;
    p.channel = number.next(ceil_div(shape.c, kChannels)) * kChannels;
    p.column = number.next(ceil_div(shape.axes[2].out, knobs.tile_w)) * knobs.tile_w;
    p.row = number.next(ceil_div(shape.axes[1].out, knobs.tile_h)) * knobs.tile_h;
    p.image = i64{number.rest} * knobs.images;
    return p;
  }

  // Lane l of a warp has a pixel l / 4 and eight channels from 8 (l % 4) on, two in a word. The words i of a warp are a
  // matrix of pixels by channels; transposed, its rows are the planes from 8 i on.
  TW_MEMBER static int channel_of(int plane) { return plane % 8 / 2 * 8 + plane / 8 * 2 + plane % 2; }
  TW_MEMBER static u8* plane_at(int plane) { return dynamic_shared() + plane * knobs.plane_bytes(); }
  TW_MEMBER static u16* weights() { return reinterpret_cast<u16*>(dynamic_shared() + knobs.weights_at()); }

  TW_MEMBER static void copy_weights(const Args& args, const Shape& shape, const Place& p) {
    TW_NO_UNROLL for (int i = static_cast<int>(thread_x()); i < kChannels * knobs.taps(); i += kThreads) {
      const i32 channel = p.channel + channel_of(i / knobs.taps());
      weights()[i] = channel < shape.c
                         ? static_cast<const u16*>(args.w.data)[i64{channel} * knobs.taps() + i % knobs.taps()]
                         : u16{0};
    }
  }

  // ---- x to planes
  // Where the lane's pixels of blocks of columns are in a row, in pieces of eight channels; kOutside: nowhere.
  TW_CONSTANTS(u32, kOutside = 0xffffffff);
  template <int n>
  TW_MEMBER static void find_columns(const Shape& shape, i32 channel, i32 first, i32 end, const Axis* padded,
                                     u32 (&columns)[n]) {
    const i32 lane = static_cast<i32>(thread_x() % 32), pieces = shape.c / 8;
    TW_UNROLL for (int b = 0; b < n; ++b) {
      i32 column = first + b * 8 + lane / 4;
      if (padded) column = place_on(*padded, column);
      columns[b] = column >= 0 && column < end && channel < shape.c
                       ? static_cast<u32>(column) * static_cast<u32>(pieces) + static_cast<u32>(channel) / 8
                       : kOutside;
    }
  }
  TW_MEMBER static void load(const Args& args, const Shape& shape, const Place& p) {
    // Warps take rows in turns; several share one of many columns.
    constexpr int kParts = knobs.seen_blocks() > 8   ? 4
                           : knobs.seen_blocks() > 4 ? 2
                                                     : 1,
                  kBlocks = ceil_div(knobs.seen_blocks(), kParts);
    constexpr int kAhead = kBlocks > 4 ? 1 : 2, kRows = knobs.images * knobs.seen_h(), kStep = knobs.warps / kParts;
    const Axis &height = shape.axes[1], &width = shape.axes[2];
    const int lane = static_cast<int>(thread_x() % 32), warp = static_cast<int>(thread_x() / 32);
    const int part = warp % kParts * kBlocks;
    u32 columns[kBlocks];
    find_columns(shape, p.channel + lane % 4 * 8, p.column - width.lo + part * 8, width.in, &width, columns);
    u8* const to = plane_at(lane / 4) + part * 16 + lane % 4 * 4;
    TW_NO_UNROLL for (int first = warp / kParts; first < kRows; first += kAhead * kStep) {
      u32x4 words[kAhead][kBlocks];
      TW_UNROLL for (int a = 0; a < kAhead; ++a) {
        const int item = first + a * kStep;
        const i64 image = p.image + item / knobs.seen_h();
        const i32 y = place_on(height, p.row - height.lo + item % knobs.seen_h());
        const bool exists = item < kRows && image < images_of(shape) && y >= 0 && y < height.in;
        const u8* const row =
            static_cast<const u8*>(args.x.data) + (exists ? (image * height.in + y) * width.in * shape.c * 2 : 0);
        TW_UNROLL for (int b = 0; b < kBlocks; ++b) {
          words[a][b] = {0, 0, 0, 0};
          if (exists && columns[b] != kOutside) words[a][b] = load_global16(row + u64{columns[b]} * 16);
        }
      }
      TW_UNROLL for (int a = 0; a < kAhead; ++a) {
        const int item = first + a * kStep;
        if (item >= kRows) continue;  // a warp's lanes agree
        u8* const line = to + item / knobs.seen_h() * knobs.image_bytes() + item % knobs.seen_h() * knobs.row_bytes();
        TW_UNROLL for (int b = 0; b < kBlocks; ++b) {
          if (kParts * kBlocks > knobs.seen_blocks() && part + b >= knobs.seen_blocks()) continue;
          const u32 word[4] = {words[a][b].x, words[a][b].y, words[a][b].z, words[a][b].w};
          TW_UNROLL for (int i = 0; i < 4; ++i) * reinterpret_cast<u32*>(line + b * 16 + 8 * i * knobs.plane_bytes()) =
              transpose_matrix(word[i]);
        }
      }
    }
  }

  // ---- a channel
  struct Finish {
    gemm::Args args;
    gemm::Shape shape;
    float scale;
  };
  TW_MEMBER static Finish finish_of(const Args& args, const Shape& shape) {
    Finish f{};
    f.args = product_args(args, 0), f.shape = product_shape(shape, shape.k, 0);
    f.scale = gemm::tensor_scale<X, W>(f.args, f.shape);
    return f;
  }
  // B of each filter row: element (k, n) is what column k adds to output n.
  TW_MEMBER static void read_filter(int plane, int lane, u32 (&filter)[kTapsH][2]) {
    const u16* const w = weights() + plane * knobs.taps();
    TW_UNROLL for (int half = 0; half < 2; ++half) {
      int tap[2];
      TW_UNROLL for (int e = 0; e < 2; ++e) {
        const int distance = 8 * half + lane % 4 * 2 + e - lane / 4;
        tap[e] = distance >= 0 && distance % knobs.dilation_w == 0 && distance / knobs.dilation_w < kTapsW
                     ? distance / knobs.dilation_w
                     : -1;
      }
      TW_UNROLL for (int r = 0; r < kTapsH; ++r) {
        const u32 lo = tap[0] >= 0 ? w[r * kTapsW + tap[0]] : 0u, hi = tap[1] >= 0 ? w[r * kTapsW + tap[1]] : 0u;
        filter[r][half] = lo | hi << 16;
      }
    }
  }
  // Where an output row of the tile begins, and the first input row that it sees. Rows beyond the tile show its first.
  TW_MEMBER static int row_at(int row) {
    if (row >= knobs.rows()) row = 0;
    return row / knobs.tile_h * knobs.image_bytes() + row % knobs.tile_h * knobs.row_bytes();
  }
  TW_MEMBER static void filter_plane(const Finish& f, int plane, float bias) {
    const int lane = static_cast<int>(thread_x() % 32);
    u32 filter[kTapsH][2];
    read_filter(plane, lane, filter);
    u8* const base = plane_at(plane);
    TW_NO_UNROLL for (int m = 0; m < knobs.row_tiles(); ++m) {
      const u8* const in = base + row_at(16 * m + lane % 16);
      u8* const out[2] = {base + row_at(16 * m + lane / 4) + lane % 4 * 4,
                          base + row_at(16 * m + 8 + lane / 4) + lane % 4 * 4};
      // Both blocks of columns of a tile; the second is the next one's first.
      u32 left[kTapsH][2];
      TW_UNROLL for (int r = 0; r < kTapsH; ++r) ldmatrix_x2(left[r], in + r * knobs.dilation_h * knobs.row_bytes());
      TW_NO_UNROLL for (int n = 0; n < knobs.column_tiles(); ++n) {
        float sums[2][4] = {};
        TW_UNROLL for (int r = 0; r < kTapsH; ++r) {
          u32 right[2];
          ldmatrix_x2(right, in + r * knobs.dilation_h * knobs.row_bytes() + (n + 1) * 16);
          const u32 a[4] = {left[r][0], left[r][1], right[0], right[1]};
          mma_k16<T>(sums[r % 2], a, filter[r]);
          left[r][0] = right[0], left[r][1] = right[1];
        }
        // No lane reads these columns of these rows any more.
        sync_warp();
        TW_UNROLL for (int half = 0; half < 2; ++half) {
          float v[2];
          TW_UNROLL for (int e = 0; e < 2; ++e) v[e] =
              Epi::finish(f.args, f.shape, sums[0][2 * half + e] + sums[1][2 * half + e], f.scale, bias, 0.0f);
          if (16 * m + 8 * half + lane / 4 < knobs.rows())
            *reinterpret_cast<u32*>(out[half] + n * 16) = pack2<Y>(v[0], v[1]);
        }
      }
    }
  }

  // ---- to y
  TW_MEMBER static void store(const Args& args, const Shape& shape, const Place& p) {
    constexpr int kBlocks = knobs.column_tiles();
    const i32 height = shape.axes[1].out, width = shape.axes[2].out;
    const int lane = static_cast<int>(thread_x() % 32), warp = static_cast<int>(thread_x() / 32);
    u32 columns[kBlocks];
    find_columns(shape, p.channel + lane % 4 * 8, p.column, width, nullptr, columns);
    TW_NO_UNROLL for (int item = warp; item < knobs.rows(); item += knobs.warps) {
      const i64 image = p.image + item / knobs.tile_h;
      const i32 row = p.row + item % knobs.tile_h;
      if (image >= images_of(shape) || row >= height) continue;  // a warp's lanes agree
      const u8* const line =
          plane_at(lane) + item / knobs.tile_h * knobs.image_bytes() + item % knobs.tile_h * knobs.row_bytes();
      u8* const y = static_cast<u8*>(args.y) + (image * height + row) * width * shape.c * 2;
      TW_UNROLL for (int b = 0; b < kBlocks; ++b) {
        u32 words[4];
        ldmatrix_transposed<4>(words, line + b * 16);
        if (columns[b] != kOutside)
          store_global16(y + u64{columns[b]} * 16, u32x4{words[0], words[1], words[2], words[3]});
      }
    }
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const int warp = static_cast<int>(thread_x() / 32);
    wait_prerequisite_grids();
    const Finish f = finish_of(args, shape);
    i32 channel_of_weights = -1;
    TW_NO_UNROLL for (u32 tile = block_x(); tile < tiles_of(shape); tile += grid_x()) {
      const Place p = place_of(shape, tile);
      if (p.channel != channel_of_weights) copy_weights(args, shape, p), channel_of_weights = p.channel;
      load(args, shape, p);
      sync_block();
      TW_NO_UNROLL for (int plane = warp; plane < kChannels; plane += knobs.warps) {
        const i32 channel = p.channel + channel_of(plane);
        filter_plane(f, plane, channel < shape.c ? Epi::bias_at(args.bias, channel) : 0.0f);
      }
      sync_block();
      store(args, shape, p);
      sync_block();  // the next tile's planes
    }
  }
};

}  // namespace tw::conv
