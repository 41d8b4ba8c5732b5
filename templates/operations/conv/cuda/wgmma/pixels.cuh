// SPDX-License-Identifier: Apache-2.0
// Rows of x and y for gemm's warpgroup kernel (operations/gemm/cuda/wgmma/gathered_rows.cuh): output pixels in boxes,
// tile by tile. For a tap of the kernel the input of such a box is a box as well, which the copy engine reads from
// where it lies; what it has of zero padding, lies outside of the tensor map and arrives as zeros. Rows of w are read
// tap by tap.
//
// A stage is a panel of channels of one tap, or of all taps of a column of the kernel (WgmmaKnobs::halo). Stages of a
// frame of the kernel come one behind the other, those of a tap's panels innermost.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/conv/cuda/wgmma/plan.cuh"
#include "operations/conv/cuda/wgmma/prologue.cuh"
#include "operations/conv/params.cuh"
#include "operations/gemm/params.cuh"

namespace tw::conv {

// Constants of a launch for gemm's kernel, and what they are made of.
struct PixelShape : gemm::Shape {
  const conv::Args& args;
  const conv::Shape &source, &problem;  // as a launch passes it, and as it is multiplied
  const TensorMap *pixels, *filters, *cached;
  TW_MEMBER PixelShape(const gemm::Shape& product, const conv::Args& launch, const conv::Shape& from,
                       const conv::Shape& of, const TensorMap* pixels_map, const TensorMap* filters_map,
                       const TensorMap* cached_map)
      : gemm::Shape(product),
        args(launch),
        source(from),
        problem(of),
        pixels(pixels_map),
        filters(filters_map),
        cached(cached_map) {}
};
TW_FN const PixelShape& pixel_shape(const gemm::Shape& shape) { return static_cast<const PixelShape&>(shape); }

// X, W: formats of x and w as a launch passes them; XTo, WTo: the elements that are multiplied.
template <const WgmmaKnobs& knobs, class X, class W, class XTo, class WTo>
struct PixelRows {
  TW_CONSTANTS(bool, kGathers = true);
  TW_CONSTANTS(int, kPixels = knobs.pixels(), kPanelK = knobs.panel_k(), kPanels = knobs.panels(),
               kOfStage = knobs.stage_panels(), kTaps = knobs.taps(), kLoaders = knobs.loaders());

  // Boxes along an axis: width, height or depth.
  TW_MEMBER static u32 boxes(const Shape& shape, int axis) {
    const int box = axis == 0 ? knobs.box_w : axis == 1 ? knobs.box_h : knobs.box_d;
    return (static_cast<u32>(shape.axes[2 - axis].out) + static_cast<u32>(box) - 1) / static_cast<u32>(box);
  }
  TW_MEMBER static i64 tiles(const Shape& shape) {
    return ceil_div64(shape.n, knobs.box_n) * boxes(shape, 2) * boxes(shape, 1) * boxes(shape, 0);
  }
  TW_MEMBER static u32 stages_of_frame(const Shape& shape) {
    return static_cast<u32>(shape.axes[1].kernel / kTaps * shape.axes[2].kernel * (kPanels / kOfStage));
  }

  // A box of output pixels. Its rows are pixels of y.
  struct Tile {
    const Shape& conv;
    i32 at[4];  // the first's width, height, depth and image
    TW_MEMBER Tile(const gemm::Shape& shape, i64 row0) : conv(pixel_shape(shape).problem) {
      u32 rest = static_cast<u32>(row0 / kPixels);
      TW_UNROLL for (int a = 0; a < 3; ++a) {
        const u32 count = boxes(conv, a);
        at[a] = static_cast<i32>(rest % count) * (a == 0 ? knobs.box_w : a == 1 ? knobs.box_h : knobs.box_d);
        rest /= count;
      }
      at[3] = static_cast<i32>(rest) * knobs.box_n;
    }
    // The places of a box' pixel on the axes: width, height, depth and image.
    struct Pixel {
      i32 at[4];
    };
    TW_MEMBER Pixel pixel(int i) const {
      return {{at[0] + i % knobs.box_w, at[1] + i / knobs.box_w % knobs.box_h,
               at[2] + i / (knobs.box_w * knobs.box_h) % knobs.box_d,
               at[3] + i / (knobs.box_w * knobs.box_h * knobs.box_d)}};
    }
    TW_MEMBER bool exists(const Pixel& p) const {
      const Axis* axes = conv.axes;
      return p.at[0] < axes[2].out && p.at[1] < axes[1].out && p.at[2] < axes[0].out && p.at[3] < conv.n;
    }
    TW_MEMBER i64 place(const Pixel& p, i64 image) const {
      return ((image * conv.axes[0].out + p.at[2]) * conv.axes[1].out + p.at[1]) * conv.axes[2].out + p.at[0];
    }
    TW_MEMBER i64 row(int i) const {
      const Pixel p = pixel(i);
      return exists(p) ? place(p, p.at[3]) : -1;
    }
    TW_MEMBER i64 transposed(int i, i64 channel) const {
      const Pixel p = pixel(i);
      return exists(p) ? place(p, i64{p.at[3]} * conv.k + channel) : -1;
    }
    TW_MEMBER bool adjacent(int i, int count) const {
      return i % knobs.box_w + count <= knobs.box_w && at[0] + i % knobs.box_w + count <= conv.axes[2].out;
    }
  };

  // Tiles without the stages of frames that are padding for all of their pixels. Blocks that share loads have the same
  // stages, those that either needs.
  template <class Matrix>
  struct Frames : Matrix {
    const gemm::Shape& shape;
    TW_MEMBER Frames(const gemm::Args& args, const gemm::Shape& s) : Matrix(args, s), shape(s) {}
    TW_MEMBER bool next(i64& n0, i64& m0) {
      if (!Matrix::next(n0, m0)) return false;
      if constexpr (knobs.skips) leave_out(knobs.swapped ? n0 - i64{Matrix::own_rank()} * kPixels : m0);
      return true;
    }
    TW_MEMBER void leave_out(i64 row0) {
      const Shape& conv = pixel_shape(shape).problem;
      const Axis& axis = conv.axes[0];
      const Tile first(shape, row0), last(shape, row0 + (knobs.swapped ? knobs.cluster - 1 : 0) * kPixels);
      i32 begin = 0, end = axis.kernel;
      if (first.at[3] == last.at[3]) {
        // Places of the first tap for the first and the last frame: taps from `begin` on reach x from the last one, and
        // those up to `end` from the first.
        const i32 from = first.at[2] * axis.stride - axis.lo,
                  to = min2(last.at[2] + knobs.box_d, axis.out) * axis.stride - axis.stride - axis.lo;
        begin = to < 0 ? min2(end, (-to + axis.dilation - 1) / axis.dilation) : 0;
        end = max2(begin, min2(end, (axis.in - from + axis.dilation - 1) / axis.dilation));
      }
      const u32 stages = stages_of_frame(conv);
      this->k_begin = static_cast<u32>(begin) * stages, this->k_end = static_cast<u32>(end) * stages;
    }
  };
  template <class Matrix>
  struct TilesOf {
    using type = Frames<Matrix>;
  };

  template <class T>
  TW_MEMBER static void write_ahead(const gemm::Shape& shape, u8* memory, int thread) {
    if constexpr (knobs.writes_x || knobs.writes_w) {
      const PixelShape& of = pixel_shape(shape);
      Prologue<knobs, X, W, XTo, WTo, T::kThreads, T::kPlan.barriers_at>::run(of.args, of.source, of.problem, memory,
                                                                              thread);
    }
  }

  // T: the kernel's traits.
  template <class T>
  struct Loader {
    const PixelShape& shape;
    Tile tile;
    i32 filter;              // the first row of w
    i32 frame, row, column;  // of the kernel: the next stage's tap, or its first
    i32 panel = 0;

    TW_MEMBER Loader(const gemm::Shape& s, i64 pixel0, i64 filter0, u32 k_begin)
        : shape(pixel_shape(s)),
          tile(s, pixel0),
          filter(static_cast<i32>(filter0)),
          frame(static_cast<i32>(k_begin / stages_of_frame(shape.problem))),
          row(0),
          column(0) {}

    // The filters of a tap.
    TW_MEMBER void load_w(u8* to, int tap, u64* full, u32 rank) {
      const Axis* axes = shape.problem.axes;
      PanelPlace from{filter, (frame * axes[1].kernel + row + tap) * axes[2].kernel + column, panel * kPanelK};
      if constexpr (!T::kSwapped) {
        tensor_load(to, shape.filters, from, full, kEvictNormal);
      } else if constexpr (T::kMulticast > 1) {  // each of the blocks that share them loads a part for all
        constexpr int kRows = T::kBlockM / T::kMulticast;
        from.row += static_cast<i32>(rank) * kRows;
        tensor_load_multicast(to + rank * kRows * gemm::kPanelBytes, shape.filters, from, full,
                              (1u << T::kMulticast) - 1, kEvictNormal);
      } else {
        tensor_load(to, shape.filters, from, full, kEvictNormal);
      }
    }
    TW_MEMBER void advance() {
      const Axis* axes = shape.problem.axes;
      if ((panel += kOfStage) < kPanels) return;
      panel = 0;
      if (++column < axes[2].kernel) return;
      column = 0;
      if ((row += kTaps) < axes[1].kernel) return;
      row = 0, ++frame;
    }
    // A tap's pixels, or those of all taps of a column.
    TW_MEMBER void load_x(u8* to, u64* full, u32 rank) const {
      const Shape& conv = shape.problem;
      const i32 taps[3] = {column, row, frame};
      TensorPlace from{panel * kPanelK, {0, 0, 0, tile.at[3]}};
      TW_UNROLL for (int a = 0; a < 3; ++a) {
        const Axis& axis = conv.axes[2 - a];
        from.at[a] = tile.at[a] * axis.stride - axis.lo + taps[a] * axis.dilation;
      }
      const TensorMap* map = shape.pixels;
      if constexpr (knobs.box_d == 1) {
        if (conv.axes[0].pad != Pad::zero) from.at[2] = place_on(conv.axes[0], from.at[2]);
        if (!knobs.writes_x && from.at[2] >= 0 && from.at[2] < conv.cache)
          map = shape.cached;
        else if (!knobs.writes_x)
          from.at[2] -= conv.cache;
      }
      if constexpr (kLoaders > 1) {
        constexpr int kAxis = knobs.split_axis(), kPart = knobs.part(kAxis);
        constexpr int kBytes = knobs.part(0) * knobs.part(1) * knobs.part(2) * knobs.part(3) * gemm::kPanelBytes;
        from.at[kAxis] += static_cast<i32>(rank) * kPart * (kAxis == 3 ? 1 : conv.axes[2 - min2(kAxis, 2)].stride);
        to += rank * kBytes;
      }
      TW_UNROLL for (int p = 0; p < kOfStage; ++p) {
        if constexpr (kLoaders > 1)
          tensor_load_multicast(to + p * T::kXPanelBytes, map, from, full, (1u << kLoaders) - 1, kEvictNormal);
        else
          tensor_load(to + p * T::kXPanelBytes, map, from, full, kEvictNormal);
        from.inner += kPanelK;
      }
    }
  };
};

}  // namespace tw::conv
