// SPDX-License-Identifier: Apache-2.0
// Convolutions of few output channels, a VAE's last layer first. As the gemm that a convolution is, they fill a few
// columns of a matrix unit's tile, and each tap reads x again. Here each pixel of x is read once and multiplied by all
// taps at once: a row of the product for each tap and output channel, whose elements are then shifted by their tap and
// added. (Vasudevan, Anderson, Gregg: Parallel Multi Channel Convolution using General Matrix Multiplication, 2017.)
//
// Blocks take tiles of pixels in turns, and go from frame to frame of x, each of which adds to as many output frames as
// the kernel has. Products of those stay in registers until the last of their frames is multiplied, for frames need no
// shift; then they pass through shared memory once. Channels of the pixels that a tile sees, padding included, arrive
// in stages, those of the next tile while one is summed; weights stay.
#pragma once
#include "backends/cuda/fragments.cuh"
#include "operations/conv/cuda/kn2row/plan.cuh"
#include "operations/conv/cuda/product.cuh"
#include "operations/conv/params.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/operands.cuh"

namespace tw::conv {

template <class X, class W, class Epi, const Kn2rowKnobs& knobs>
struct Kn2row {
  using T = typename X::Element;
  static_assert(same<T, typename W::Element>() && sizeof(T) == 2, "16-bit floats of one type");
  TW_CONSTANTS(int, kThreads = knobs.threads(), kSharedBytes = knobs.shared_bytes());
  TW_CONSTANTS(int, kFrameTiles = knobs.frame_tiles(), kPixelTiles = knobs.pixel_tiles(), kOwn = knobs.own_pixels(),
               kFeatures = knobs.features, kFrames = knobs.kernel_d, kPieces = knobs.chunk / 8);
  static_assert(kOwn * kThreads == knobs.tile_h * knobs.tile_w && kOwn > 0, "each thread has as many pixels");
  static_assert(knobs.chunk % 32 == 0 && knobs.channels % 8 == 0 && knobs.stages >= 2, "whole pieces");

  // Of the output frames that a frame of x adds to: the o-th of a tile is at o mod kFrames.
  using Products = float[kFrames][kFrameTiles][kPixelTiles][4];
  using Sums = float[kOwn][kFeatures];

  struct Place {
    i64 image;
    i32 frame, last_frame, row, column;  // of the first output; behind the last frame
  };
  TW_MEMBER static i32 frames_of(const Shape& shape) {
    return knobs.frames > 0 ? min2(knobs.frames, shape.axes[0].out) : shape.axes[0].out;
  }
  TW_MEMBER static u32 tiles_of(const Shape& shape) {
    const Axis* axes = shape.axes;
    return static_cast<u32>(shape.n) * static_cast<u32>(ceil_div(axes[0].out, frames_of(shape))) *
           static_cast<u32>(ceil_div(axes[1].out, knobs.tile_h)) *
           static_cast<u32>(ceil_div(axes[2].out, knobs.tile_w));
  }
  TW_MEMBER static Place place_of(const Shape& shape, u32 tile) {
    TileNumber number{tile};
    const Axis* axes = shape.axes;
    const i32 frames = frames_of(shape);
    Place p;
    p.column = number.next(ceil_div(axes[2].out, knobs.tile_w)) * knobs.tile_w;
    p.row = number.next(ceil_div(axes[1].out, knobs.tile_h)) * knobs.tile_h;
    p.frame = number.next(ceil_div(axes[0].out, frames)) * frames;
    p.last_frame = min2(p.frame + frames, axes[0].out);
    p.image = number.rest;
    return p;
  }

  // ---- tables and weights in shared memory
  // One of two: the next tile's is made while the other may be read.
  TW_MEMBER static i32* places(int table) {
    return reinterpret_cast<i32*>(dynamic_shared() + knobs.places_at()) + table * knobs.pixels();
  }
  // Where in a frame each pixel is; -1: nowhere. Ragged tiles reach beyond the padding too.
  TW_MEMBER static void find_pixels(const Shape& shape, const Place& p, int table) {
    const Axis &height = shape.axes[1], &width = shape.axes[2];
    TW_NO_UNROLL for (int i = static_cast<int>(thread_x()); i < knobs.pixels(); i += kThreads) {
      const i32 y = place_on(height, p.row - height.lo + i / knobs.seen_w()),
                x = place_on(width, p.column - width.lo + i % knobs.seen_w());
      const bool exists = i < knobs.seen() && y >= 0 && y < height.in && x >= 0 && x < width.in;
      places(table)[i] = exists ? y * width.in + x : -1;
    }
  }
  TW_MEMBER static void copy_weights(const Args& args, const Shape& shape) {
    constexpr int kRowPieces = knobs.chunks() * kPieces, kItems = knobs.row_tiles() * 16 * kRowPieces;
    constexpr int kTaps = kFrames * knobs.frame_taps();
    const u16* const w = static_cast<const u16*>(args.w.data);
    TW_NO_UNROLL for (int i = static_cast<int>(thread_x()); i < kItems; i += kThreads) {
      const int row = i / kRowPieces, channel = i % kRowPieces * 8, in_frame = row % (kFrameTiles * 16);
      const int tap = row / (kFrameTiles * 16) * knobs.frame_taps() + in_frame / kFeatures,
                feature = in_frame % kFeatures;
      u32x4 piece = {0, 0, 0, 0};
      if (in_frame < knobs.frame_rows() && channel < knobs.channels) {
        const i64 filter = i64{feature} * kTaps * knobs.channels;
        if (!shape.w_channels_first) {
          piece = *reinterpret_cast<const u32x4*>(w + filter + i64{tap} * knobs.channels + channel);
        } else {
          const u16* const from = w + filter + i64{channel} * kTaps + tap;
          const auto pair = [&](int at) {
            return from[i64{at} * kTaps] | static_cast<u32>(from[i64{at + 1} * kTaps]) << 16;
          };
          piece = {pair(0), pair(2), pair(4), pair(6)};
        }
      }
      *reinterpret_cast<u32x4*>(dynamic_shared() + row * knobs.weight_pitch() + channel * 2) = piece;
    }
  }

  // ---- x to shared memory
  // Stages in their order: the chunks of each frame that exists, tile by tile.
  struct Cursor {
    u32 tile;
    Place of;    // that tile
    i32 at = 0;  // along the padded axis of frames
    i32 frame = 0;
    int chunk = 0, table = 1;
  };
  TW_MEMBER static bool ended(const Shape& shape, const Cursor& c) { return c.tile >= tiles_of(shape); }
  // From c.at on, in its tile or a later one.
  TW_MEMBER static void settle(const Shape& shape, Cursor& c, bool next_tile) {
    const Axis& depth = shape.axes[0];
    for (;; next_tile = true, c.tile += grid_x()) {
      if (next_tile) {
        if (ended(shape, c)) return;
        c.of = place_of(shape, c.tile), c.at = c.of.frame;
      }
      for (; c.at < c.of.last_frame + kFrames - 1; ++c.at) {
        c.frame = place_on(depth, c.at - depth.lo);
        if (c.frame < 0) continue;
        if (next_tile) find_pixels(shape, c.of, c.table ^= 1);
        return;
      }
    }
  }
  TW_MEMBER static void advance(const Shape& shape, Cursor& c) {
    if (++c.chunk < knobs.chunks()) return;
    c.chunk = 0, ++c.at;
    settle(shape, c, false);
  }
  TW_MEMBER static void fetch(const Args& args, const Shape& shape, const Cursor& c, int stage) {
    const Source source = source_at(shape, c.frame, 0, 0);
    const u8* const frame = static_cast<const u8*>(source.cached ? args.cache : args.x.data) +
                            (c.of.image * source.pixels + source.pixel) * knobs.channels * 2;
    // A thread copies the same piece of its pixels.
    constexpr int kStep = kThreads / kPieces, kPitch = knobs.pixel_pitch();
    static_assert(knobs.pixels() % kStep == 0, "each thread copies as much");
    const int first = static_cast<int>(thread_x()) / kPieces, piece = static_cast<int>(thread_x()) % kPieces;
    const i32 channel = c.chunk * knobs.chunk + piece * 8;
    const bool channels = knobs.channels % knobs.chunk == 0 || channel < knobs.channels;
    const u8* const from = frame + (channels ? channel : 0) * 2;
    const i32* const place = places(c.table) + first;
    u8* const to = dynamic_shared() + knobs.stage_at(stage) + first * kPitch + piece * 16;
    TW_UNROLL for (int i = 0; i * kStep < knobs.pixels(); ++i) {
      const i32 at = place[i * kStep];
      cp_async<16>(to + i * kStep * kPitch, from + i64{max2(at, 0)} * (knobs.channels * 2),
                   channels && at >= 0 ? 16 : 0);
    }
  }

  // ---- products
  // newest: where the products of the output frame are to which the kernel's first frame belongs.
  TW_MEMBER static void multiply(int chunk, int stage, int newest, Products& products) {
    const int lane = static_cast<int>(thread_x() % 32), warp = static_cast<int>(thread_x() / 32);
    const u8* const weights = dynamic_shared() + lane % 16 * knobs.weight_pitch() + lane / 16 * 16;
    const u8* const pixels = dynamic_shared() + knobs.stage_at(stage) +
                             (warp * kPixelTiles * 8 + lane % 8) * knobs.pixel_pitch() + lane / 8 * 16;
    int rows_at[kFrames];
    TW_UNROLL for (int t = 0; t < kFrames; ++t) {
      const int frame = newest - t + (newest < t ? kFrames : 0);
      rows_at[t] = frame * kFrameTiles * 16 * knobs.weight_pitch() + chunk * knobs.chunk * 2;
    }
    TW_UNROLL for (int k = 0; k < knobs.chunk; k += 32) {
      u32 b[kPixelTiles][4];
      TW_UNROLL for (int n = 0; n < kPixelTiles; ++n) ldmatrix_x4(b[n], pixels + n * 8 * knobs.pixel_pitch() + k * 2);
      TW_UNROLL for (int t = 0; t < kFrames; ++t) {
        TW_UNROLL for (int m = 0; m < kFrameTiles; ++m) {
          TW_UNROLL for (int half = 0; half < 2; ++half) {
            u32 a[4];
            ldmatrix_x4(a, weights + rows_at[t] + m * 16 * knobs.weight_pitch() + (k + half * 16) * 2);
            TW_UNROLL for (int n = 0; n < kPixelTiles; ++n) {
              const u32 part[2] = {b[n][2 * half], b[n][2 * half + 1]};
              mma_k16<T>(products[t][m][n], a, part);
            }
          }
        }
      }
    }
  }

  // ---- their sums
  // Rows of a finished frame's products, shifted by their taps, to the outputs that they belong to. Whoever
  // calls has passed a barrier since the last call.
  TW_MEMBER static void add(const Products& products, int finished, Sums& sums) {
    const int lane = static_cast<int>(thread_x() % 32), warp = static_cast<int>(thread_x() / 32);
    constexpr int kPitch = knobs.product_pitch(), kRound = knobs.round_tiles();
    float* const shared = reinterpret_cast<float*>(dynamic_shared() + knobs.product_at());
    float* const to = shared + lane / 4 * kPitch + warp * kPixelTiles * 8 + lane % 4 * 2;
    TW_UNROLL for (int round = 0; round < knobs.rounds(); ++round) {
      if (round > 0) sync_block();
      TW_UNROLL for (int t = 0; t < kFrames; ++t) {
        if (t != finished) continue;  // all threads agree, and registers are not indexed
        TW_UNROLL for (int m = 0; m < kRound && round * kRound + m < kFrameTiles; ++m) {
          TW_UNROLL for (int n = 0; n < kPixelTiles; ++n) {
            const float(&v)[4] = products[t][round * kRound + m][n];
            float* const at = to + m * 16 * kPitch + n * 8;
            *reinterpret_cast<u32x2*>(at) = {bits_as<u32>(v[0]), bits_as<u32>(v[1])};
            *reinterpret_cast<u32x2*>(at + 8 * kPitch) = {bits_as<u32>(v[2]), bits_as<u32>(v[3])};
          }
        }
      }
      sync_block();
      TW_UNROLL for (int j = 0; j < kOwn; ++j) {
        const int unit = warp + j * knobs.warps;
        const float* const from = shared + knobs.own_row(unit, lane) * knobs.seen_w() + knobs.own_column(unit, lane);
        TW_UNROLL for (int r = 0; r < kRound * 16; ++r) {
          const int row = round * kRound * 16 + r;
          if (row >= knobs.frame_rows()) continue;
          const int tap = row / kFeatures;
          const int shift =
              tap / knobs.kernel_w * knobs.dilation_h * knobs.seen_w() + tap % knobs.kernel_w * knobs.dilation_w;
          sums[j][row % kFeatures] += from[r * kPitch + shift];
        }
      }
    }
  }
  TW_MEMBER static void clear(Products& products, int finished) {
    TW_UNROLL for (int t = 0; t < kFrames; ++t) {
      if (t != finished) continue;
      TW_UNROLL for (int m = 0; m < kFrameTiles; ++m) {
        TW_UNROLL for (int n = 0; n < kPixelTiles; ++n) {
          TW_UNROLL for (int e = 0; e < 4; ++e) products[t][m][n][e] = 0;
        }
      }
    }
  }

  // ---- to y
  struct Finish {
    gemm::Args args;
    gemm::Shape shape;
    float scale, bias[kFeatures];
  };
  TW_MEMBER static Finish finish_of(const Args& args, const Shape& shape) {
    Finish f{};
    f.args = product_args(args, 0), f.shape = product_shape(shape, shape.k, 0);
    f.scale = gemm::tensor_scale<X, W>(f.args, f.shape);
    TW_UNROLL for (int o = 0; o < kFeatures; ++o) f.bias[o] = Epi::bias_at(args.bias, o);
    return f;
  }
  TW_MEMBER static void store(const Finish& f, const Args& args, const Shape& shape, const Place& p, i32 frame,
                              const Sums& sums) {
    const i32 height = shape.axes[1].out, width = shape.axes[2].out;
    TW_UNROLL for (int j = 0; j < kOwn; ++j) {
      const int lane = static_cast<int>(thread_x() % 32), unit = static_cast<int>(thread_x() / 32) + j * knobs.warps;
      const i32 row = p.row + knobs.own_row(unit, lane), column = p.column + knobs.own_column(unit, lane);
      if (row >= height || column >= width) continue;
      const i64 pixel = (i64{frame} * height + row) * width + column;
      TW_UNROLL for (int o = 0; o < kFeatures; ++o) {
        const i64 at = element_at(shape.y_channels_first, p.image, o, kFeatures, pixel, shape.pixels());
        Epi::store(args.y, at,
                   Epi::finish(f.args, f.shape, sums[j][o], f.scale, f.bias[o], Epi::c_element(args.residual, at)));
      }
    }
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const Axis& depth = shape.axes[0];
    Cursor ahead{block_x(), {}};
    if (ended(shape, ahead)) return;
    if (shape.constant_weights) copy_weights(args, shape);
    settle(shape, ahead, true);
    wait_prerequisite_grids();
    if (!shape.constant_weights) copy_weights(args, shape);
    // After a barrier, which shows the tile's pixels to all.
    const auto fetch_next = [&](int stage) {
      if (!ended(shape, ahead)) fetch(args, shape, ahead, stage), advance(shape, ahead);
      cp_async_commit();
    };
    TW_UNROLL for (int stage = 0; stage < knobs.stages - 1; ++stage) {
      sync_block();
      fetch_next(stage);
    }
    const Finish f = finish_of(args, shape);
    int stage = 0, free = knobs.stages - 1;
    TW_NO_UNROLL for (u32 tile = block_x(); tile < tiles_of(shape); tile += grid_x()) {
      const Place p = place_of(shape, tile);
      Products products = {};
      int newest = 0;
      TW_NO_UNROLL for (i32 at = p.frame; at < p.last_frame + kFrames - 1; ++at) {
        if (place_on(depth, at - depth.lo) >= 0) {
          TW_NO_UNROLL for (int chunk = 0; chunk < knobs.chunks(); ++chunk) {
            cp_async_wait<knobs.stages - 2>();
            sync_block();  // the stage has arrived, and the one before is free
            fetch_next(free);
            multiply(chunk, stage, newest, products);
            free = stage;
            stage = stage + 1 < knobs.stages ? stage + 1 : 0;
          }
        } else {
          sync_block();  // the last frame's sums are read
        }
        // The kernel's last frame has been multiplied for this one, whose place the next one takes.
        const int oldest = newest + 1 < kFrames ? newest + 1 : 0;
        const i32 frame = at - (kFrames - 1);
        if (frame >= p.frame) {
          Sums sums = {};
          add(products, oldest, sums);
          store(f, args, shape, p, frame, sums);
        }
        clear(products, oldest);
        newest = oldest;
      }
    }
  }
};

}  // namespace tw::conv
