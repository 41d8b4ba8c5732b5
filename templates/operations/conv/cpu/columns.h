// SPDX-License-Identifier: Apache-2.0
// The CPU's convolutions of floats and bytes, written once over a backend B (ir.h, native_*): the gemm that a
// convolution is, of output pixels by output channels over a group's columns, summed as floats.h sums a gemm's.
//
// The first phase writes w to scratch memory as panels of single-precision numbers, whatever its format and layout, a
// row's scale multiplied in; each group has panels of its own, and a panel's rows beyond the group's repeat its last
// one. Columns are tap by tap, channels innermost. There is no first phase where w was packed in panels of its own
// format before (panels.h). A block of the second has the products of `tiles` tiles of `tokens` pixels with `turns`
// times `panels` panels. It gathers a part of its pixels' columns, 64 of them, as single-precision numbers, zeros for
// padding, multiplies them with all its panels, and goes on to the next part: no more of x is ever written down.
//
// Whoever includes it names a namespace of its own, as for kernels.h.
#include "templates/operations/gemm/cpu/kernels.h"

namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

// A pixel's numbers of a part, and room for the vector of zeros that ends behind them.
constexpr int kPixelFloats = kPart + 16;
constexpr int kPixelBytes = 4 * kPixelFloats;
constexpr int kPlaceBytes = 8 * (1 + kMostAxes);  // of a pixel: its image, and the first element it sees of each axis

constexpr Factors kConvFactors = {offsetof(tw::conv::Shape, alpha),
                                  offsetof(tw::conv::Shape, beta),
                                  offsetof(tw::conv::Shape, y_factor),
                                  offsetof(ConvArgs, alpha),
                                  offsetof(ConvArgs, beta),
                                  offsetof(ConvArgs, w) + offsetof(Operand, global)};

constexpr std::int64_t columns_stack(int tokens, int panels, int tiles, int turns) {
  return std::int64_t{turns} * tiles * tokens * panels * 4 * kPanelRows +
         std::int64_t{tiles} * tokens * (kPixelBytes + kPlaceBytes) + 2 * 64;
}

template <class B>
typename B::I64 larger(B& b, const typename B::I64& v, const typename B::I64& w) {
  return b.sub(b.add(v, w), b.min(v, w));
}
template <class B>
typename B::I64 rounded_up(B& b, const typename B::I64& v, int by) {  // what it is divided by, upwards
  return b.div(b.add(v, b.constant(by - 1)), b.constant(by));
}

// An axis of tw::conv::Shape.
template <class B>
struct ConvAxis {
  typename B::I64 in, out, kernel, stride, lo, dilation;
  ConvAxis(B& b, const typename B::Ptr& constants, int axis) : ConvAxis(b, b.at(constants, at(axis))) {}

 private:
  static constexpr std::int64_t at(int axis) {
    return static_cast<std::int64_t>(offsetof(tw::conv::Shape, axes) + sizeof(tw::conv::Axis) * axis);
  }
  ConvAxis(B& b, const typename B::Ptr& p)
      : in(b.load_i32(b.at(p, offsetof(tw::conv::Axis, in)))),
        out(b.load_i32(b.at(p, offsetof(tw::conv::Axis, out)))),
        kernel(b.load_i32(b.at(p, offsetof(tw::conv::Axis, kernel)))),
        stride(b.load_i32(b.at(p, offsetof(tw::conv::Axis, stride)))),
        lo(b.load_i32(b.at(p, offsetof(tw::conv::Axis, lo)))),
        dilation(b.load_i32(b.at(p, offsetof(tw::conv::Axis, dilation)))) {}
};

template <class B>
struct ConvLaunch {
  using I64 = typename B::I64;
  typename B::Ptr args, constants, scratch;
  I64 m, columns, all_channels, all_rows, groups, channels, rows, panels;  // the last three of a group
  std::array<ConvAxis<B>, kMostAxes> axes;
  I64 taps, pixels;  // pixels: of an output image

  ConvLaunch(B& b, const typename B::Arguments& a, const Filter& f)
      : args(a.args),
        constants(a.constants),
        scratch(a.scratch),
        m(b.load_i64(b.at(constants, offsetof(tw::conv::Shape, gemm_m)))),
        columns(b.load_i64(b.at(constants, offsetof(tw::conv::Shape, gemm_k)))),
        all_channels(b.load_i32(b.at(constants, offsetof(tw::conv::Shape, c)))),
        all_rows(b.load_i64(b.at(constants, offsetof(tw::conv::Shape, gemm_n)))),
        groups(b.load_i32(b.at(constants, offsetof(tw::conv::Shape, groups)))),
        channels(b.div(all_channels, groups)),
        rows(b.div(all_rows, groups)),
        panels(rounded_up(b, rows, kPanelRows)),
        axes{ConvAxis<B>(b, constants, 0), ConvAxis<B>(b, constants, 1), ConvAxis<B>(b, constants, 2)},
        taps(b.constant(1)),
        pixels(b.constant(1)) {
    for (int axis = kMostAxes - f.rank; axis < kMostAxes; ++axis)
      taps = b.mul(taps, axes[axis].kernel), pixels = b.mul(pixels, axes[axis].out);
  }
  // Of panels of a format, which w is in: columns with those that only fill the last step, and bytes.
  I64 panel_columns(B& b, Type w) const { return column_step(w) == 2 ? even(b, columns) : columns; }
  I64 panel_bytes(B& b, Type w) const { return b.mul(panel_columns(b, w), b.constant(kPanelRows * bytes_of(w))); }
};

// ---- the first phase: a panel a block

template <class B>
void widen_weights(B& b, const typename B::Arguments& a, const Filter& f) {
  const ConvLaunch<B> launch(b, a, f);
  const auto group = b.div(a.block, launch.panels);
  const auto first = b.mul(b.sub(a.block, b.mul(group, launch.panels)), b.constant(kPanelRows));
  const auto to = b.at(launch.scratch, b.mul(a.block, launch.panel_bytes(b, Type::f32)));
  const auto w = b.load_ptr(b.at(launch.args, offsetof(ConvArgs, w)));
  const int bytes = bytes_of(f.w), step = 4 * kPanelRows;
  b.loop(b.constant(0), b.constant(kPanelRows), 1, {}, [&](const typename B::I64& r) {
    const auto own = b.min(b.add(first, r), b.sub(launch.rows, b.constant(1)));
    const auto row = b.add(b.mul(group, launch.rows), own);
    const auto from = b.at(w, b.mul(b.mul(row, launch.columns), b.constant(bytes)));
    const auto to_row = b.at(to, b.mul(r, b.constant(4)));
    auto scale = b.splat(1.0f);
    if (f.w_has_scales) {
      const auto scales = b.load_ptr(b.at(launch.args, offsetof(ConvArgs, w) + offsetof(Operand, scales)));
      scale = b.splat_floats(b.at(scales, b.mul(row, b.constant(4))));
    }
    const auto scaled = [&](const typename B::Floats& v) { return f.w_has_scales ? b.mul(v, scale) : v; };
    if (f.w_channels_first) {
      const auto apart = b.mul(launch.taps, b.constant(bytes));  // from one channel to the next
      b.loop(b.constant(0), launch.taps, 1, {}, [&](const typename B::I64& tap) {
        const auto from_tap = b.at(from, b.mul(tap, b.constant(bytes)));
        const auto to_tap = b.at(to_row, b.mul(b.mul(tap, launch.channels), b.constant(step)));
        b.loop(b.constant(0), launch.channels, 1, {}, [&](const typename B::I64& c) {
          b.store_first(b.at(to_tap, b.mul(c, b.constant(step))),
                        scaled(splat_as(b, f.w, b.at(from_tap, b.mul(c, apart)))));
        });
      });
      return;
    }
    const auto whole = b.mul(b.div(launch.columns, b.constant(b.lanes())), b.constant(b.lanes()));
    b.loop(b.constant(0), whole, b.lanes(), {}, [&](const typename B::I64& column) {
      const auto v = load_as(b, f.w, b.at(from, b.mul(column, b.constant(bytes))));
      b.store_apart(b.at(to_row, b.mul(column, b.constant(step))), scaled(v), step);
    });
    b.loop(whole, launch.columns, 1, {}, [&](const typename B::I64& column) {
      b.store_first(b.at(to_row, b.mul(column, b.constant(step))),
                    scaled(splat_as(b, f.w, b.at(from, b.mul(column, b.constant(bytes))))));
    });
  });
}

// ---- the second: columns of pixels, and their products

template <class B>
class Gather {
 public:
  using I64 = typename B::I64;
  using Ptr = typename B::Ptr;

  // places: memory for kPlaceBytes of each pixel. group: whose channels are gathered.
  Gather(B& b, const ConvLaunch<B>& launch, const Filter& filter, const Ptr& places, const I64& group)
      : l_(launch),
        f_(filter),
        places_(places),
        first_channel_(b.mul(group, launch.channels)),
        x_(b.load_ptr(b.at(launch.args, offsetof(ConvArgs, x)))),
        cache_(x_),
        cached_(b.constant(0)),
        behind_(b.constant(1)) {
    for (int axis = first_axis() + 1; axis < kMostAxes; ++axis) behind_ = b.mul(behind_, l_.axes[axis].in);
    if (!f_.cache) return;
    cache_ = b.load_ptr(b.at(launch.args, offsetof(ConvArgs, cache)));
    cached_ = b.load_i32(b.at(launch.constants, offsetof(tw::conv::Shape, cache)));
  }

  // Writes down where pixels begin. Those behind the last one are the last one again.
  void place(B& b, const I64& first, const I64& count) const {
    b.loop(b.constant(0), count, 1, {}, [&](const I64& i) {
      const auto pixel = b.min(b.add(first, i), b.sub(l_.m, b.constant(1)));
      const auto image = b.div(pixel, l_.pixels);
      const auto to = b.at(places_, b.mul(i, b.constant(kPlaceBytes)));
      b.store_i64(to, image);
      auto rest = b.sub(pixel, b.mul(image, l_.pixels));
      for (int axis = kMostAxes - 1; axis >= first_axis(); --axis) {
        const auto& a = l_.axes[axis];
        const auto outer = axis > first_axis() ? b.div(rest, a.out) : b.constant(0);
        const auto at = axis > first_axis() ? b.sub(rest, b.mul(outer, a.out)) : rest;
        b.store_i64(b.at(to, 8 * (1 + axis)), b.sub(b.mul(at, a.stride), a.lo));
        rest = outer;
      }
    });
  }

  // Where a tap is behind a pixel's first element.
  std::array<I64, kMostAxes> offsets(B& b, const I64& tap) const {
    std::array<I64, kMostAxes> offset;
    auto rest = tap;
    for (int axis = kMostAxes - 1; axis >= first_axis(); --axis) {
      const auto& a = l_.axes[axis];
      const auto outer = axis > first_axis() ? b.div(rest, a.kernel) : b.constant(0);
      offset[axis] = b.mul(axis > first_axis() ? b.sub(rest, b.mul(outer, a.kernel)) : rest, a.dilation);
      rest = outer;
    }
    return offset;
  }
  // What a pixel sees there. outside: 0, or it is zero padding.
  struct Spot {
    std::array<I64, kMostAxes> at;
    I64 outside;
    bool may_be_outside;
  };
  Spot locate(B& b, const Ptr& place, const std::array<I64, kMostAxes>& offset) const {
    Spot spot{{}, b.constant(0), false};
    for (int axis = first_axis(); axis < kMostAxes; ++axis) {
      const auto wanted = b.add(b.load_i64(b.at(place, 8 * (1 + axis))), offset[axis]);
      const auto last = b.sub(l_.axes[axis].in, b.constant(1));
      if (f_.pad[axis] == PadMode::reflect) {
        const auto mirrored = larger(b, wanted, b.sub(b.constant(0), wanted));
        spot.at[axis] = b.min(mirrored, b.sub(b.add(last, last), mirrored));
        continue;
      }
      spot.at[axis] = larger(b, b.min(wanted, last), b.constant(0));
      if (f_.pad[axis] != PadMode::zero) continue;
      const auto by = b.sub(wanted, spot.at[axis]);  // the sum of squares of how far it is
      spot.outside = b.add(spot.outside, b.mul(by, by)), spot.may_be_outside = true;
    }
    return spot;
  }
  // The number of that element's pixel in x, all images together. Without a cache.
  I64 number(B& b, const I64& image, const Spot& spot) const {
    auto pixel = image;
    for (int axis = first_axis(); axis < kMostAxes; ++axis)
      pixel = b.add(b.mul(pixel, l_.axes[axis].in), spot.at[axis]);
    return pixel;
  }
  Ptr x() const { return x_; }

  // Columns begin to end - 1 of `count` pixels, to `to`, kPixelBytes apart.
  void columns(B& b, const I64& begin, const I64& end, const I64& count, const Ptr& to) const {
    const auto first_tap = b.div(begin, l_.channels);
    const auto last_tap = b.div(b.sub(end, b.constant(1)), l_.channels);
    b.loop(first_tap, b.add(last_tap, b.constant(1)), 1, {}, [&](const I64& tap) {
      const auto offset = offsets(b, tap);
      const auto of_tap = b.mul(tap, l_.channels);
      const auto channel = larger(b, b.sub(begin, of_tap), b.constant(0));
      const auto channels = b.sub(b.min(b.sub(end, of_tap), l_.channels), channel);
      const auto to_tap = b.at(to, b.mul(b.sub(b.add(of_tap, channel), begin), b.constant(4)));
      const auto first = b.add(first_channel_, channel);
      b.loop(b.constant(0), count, 1, {}, [&](const I64& i) {
        const auto place = b.at(places_, b.mul(i, b.constant(kPlaceBytes)));
        const auto to_pixel = b.at(to_tap, b.mul(i, b.constant(kPixelBytes)));
        const Spot spot = locate(b, place, offset);
        const auto image = b.load_i64(place);
        b.if_less(spot.outside, b.constant(1), [&] { pixel(b, image, spot.at, first, channels, to_pixel); });
        if (spot.may_be_outside)
          b.if_less(b.constant(0), spot.outside, [&] {
            b.loop(b.constant(0), channels, b.lanes(), {},
                   [&](const I64& c) { b.store_floats(b.at(to_pixel, b.mul(c, b.constant(4))), b.zero_floats()); });
          });
      });
    });
  }

 private:
  int first_axis() const { return kMostAxes - f_.rank; }

  // Channels `first` and on of one element of all axes.
  void pixel(B& b, const I64& image, const std::array<I64, kMostAxes>& at, const I64& first, const I64& channels,
             const Ptr& to) const {
    const auto& outermost = l_.axes[first_axis()];
    auto inner = b.constant(0);
    for (int axis = first_axis() + 1; axis < kMostAxes; ++axis) inner = b.add(b.mul(inner, l_.axes[axis].in), at[axis]);
    const auto from = [&](const Ptr& tensor, const I64& outer, const I64& extent) {
      run(b, tensor, image, b.add(b.mul(outer, behind_), inner), b.mul(extent, behind_), first, channels, to);
    };
    if (!f_.cache) return from(x_, at[first_axis()], outermost.in);
    const auto own = b.sub(at[first_axis()], cached_);
    b.if_less(own, b.constant(0), [&] { from(cache_, at[first_axis()], cached_); });
    b.if_less(b.constant(-1), own, [&] { from(x_, own, b.sub(outermost.in, cached_)); });
  }
  void run(B& b, const Ptr& tensor, const I64& image, const I64& pixel, const I64& pixels, const I64& first,
           const I64& channels, const Ptr& to) const {
    const int bytes = bytes_of(f_.x);
    if (f_.x_channels_first) {
      const auto element = b.add(b.mul(b.add(b.mul(image, l_.all_channels), first), pixels), pixel);
      const auto from = b.at(tensor, b.mul(element, b.constant(bytes)));
      const auto apart = b.mul(pixels, b.constant(bytes));
      b.loop(b.constant(0), channels, 1, {}, [&](const I64& c) {
        b.store_first(b.at(to, b.mul(c, b.constant(4))), splat_as(b, f_.x, b.at(from, b.mul(c, apart))));
      });
      return;
    }
    const auto element = b.add(b.mul(b.add(b.mul(image, pixels), pixel), l_.all_channels), first);
    const auto from = b.at(tensor, b.mul(element, b.constant(bytes)));
    const auto whole = b.mul(b.div(channels, b.constant(b.lanes())), b.constant(b.lanes()));
    b.loop(b.constant(0), whole, b.lanes(), {}, [&](const I64& c) {
      b.store_floats(b.at(to, b.mul(c, b.constant(4))), load_as(b, f_.x, b.at(from, b.mul(c, b.constant(bytes)))));
    });
    b.loop(whole, channels, 1, {}, [&](const I64& c) {
      b.store_first(b.at(to, b.mul(c, b.constant(4))), splat_as(b, f_.x, b.at(from, b.mul(c, b.constant(bytes)))));
    });
  }

  const ConvLaunch<B>& l_;
  const Filter& f_;
  Ptr places_;
  I64 first_channel_;
  Ptr x_, cache_;
  I64 cached_, behind_;  // behind_: elements from one of the outermost axis to the next
};

template <class B>
class ConvOutput {
 public:
  using I64 = typename B::I64;
  using Ptr = typename B::Ptr;

  // memory: 128 bytes for a vector on its way.
  ConvOutput(B& b, const ConvLaunch<B>& launch, const Filter& filter, const Ptr& memory)
      : l_(launch),
        channels_first_(filter.y_channels_first),
        memory_(memory),
        y_(b.load_ptr(b.at(launch.args, offsetof(ConvArgs, y)))),
        bias_(filter.e.has_bias ? b.load_ptr(b.at(launch.args, offsetof(ConvArgs, bias))) : y_),
        residual_(filter.e.has_c ? b.load_ptr(b.at(launch.args, offsetof(ConvArgs, residual))) : y_),
        finish_(b, launch.args, launch.constants, kConvFactors, filter.e) {}

  // Sums of a pixel for channels `row` and on, of which `left` are the group's.
  __attribute__((noinline)) void store(B& b, const I64& pixel, const I64& row, const I64& left,
                                       const typename B::Floats& sum) const {
    if (channels_first_) {
      const auto image = b.div(pixel, l_.pixels);
      const auto element =
          b.add(b.mul(b.add(b.mul(image, l_.all_rows), row), l_.pixels), b.sub(pixel, b.mul(image, l_.pixels)));
      apart(b, element, l_.pixels, row, b.min(left, b.constant(b.lanes())), sum);
      return;
    }
    const Epilogue& e = finish_.e;
    const auto element = b.add(b.mul(pixel, l_.all_rows), row);
    b.if_less(b.constant(b.lanes() - 1), left, [&] {
      store_as(b, e.y, at(b, y_, element, e.y),
               finish_.of(b, sum, e.has_bias ? at(b, bias_, row, e.bias) : bias_,
                          e.has_c ? at(b, residual_, element, e.c) : residual_));
    });
    b.if_less(left, b.constant(b.lanes()), [&] { apart(b, element, b.constant(1), row, left, sum); });
  }

 private:
  static Ptr at(B& b, const Ptr& p, const I64& element, Type type) {
    return b.at(p, b.mul(element, b.constant(bytes_of(type))));
  }
  // Fewer than a vector, or elements `step` apart: one by one, from and to memory where they are side by side.
  void apart(B& b, const I64& element, const I64& step, const I64& row, const I64& count,
             const typename B::Floats& sum) const {
    const Epilogue& e = finish_.e;
    const auto second = b.at(memory_, 64);
    const auto copy = [&](Type type, const Ptr& to, const I64& to_step, const Ptr& from, const I64& from_step) {
      b.loop(b.constant(0), count, 1, {}, [&](const I64& i) {
        b.copy(at(b, to, b.mul(i, to_step), type), at(b, from, b.mul(i, from_step), type), bytes_of(type));
      });
    };
    if (e.has_bias) copy(e.bias, memory_, b.constant(1), at(b, bias_, row, e.bias), b.constant(1));
    if (e.has_c) copy(e.c, second, b.constant(1), at(b, residual_, element, e.c), step);
    store_as(b, e.y, memory_, finish_.of(b, sum, memory_, second));
    copy(e.y, at(b, y_, element, e.y), step, memory_, b.constant(1));
  }

  const ConvLaunch<B>& l_;
  const bool channels_first_;
  Ptr memory_, y_, bias_, residual_;
  Finish<B> finish_;
};

// weights: the format of the panels. tokens, panels: of a tile. pixels: of a block, which its tiles are enough for.
// Blocks of a group's panels count fastest, then groups, then pixels.
template <class B, class Weights, class Tokens, class Panels>
void columns(B& b, const typename B::Arguments& a, const Filter& f, Weights weights, int pixels, Tokens tokens,
             Panels panels, int tiles, int turns) {
  const ConvLaunch<B> launch(b, a, f);
  const int vector_bytes = 4 * b.lanes(), pixel_bytes = panels * 4 * kPanelRows;  // of sums
  const std::int64_t tile_bytes = std::int64_t{tokens} * pixel_bytes, turn_bytes = tiles * tile_bytes,
                     x_bytes = std::int64_t{tiles} * tokens * kPixelBytes;
  const auto sums = b.stack(columns_stack(tokens, panels, tiles, turns));
  const auto x = b.at(sums, turns * turn_bytes), memory = b.at(x, x_bytes), places = b.at(memory, 2 * 64);

  const auto across = rounded_up(b, launch.panels, panels * turns), of_pixels = b.mul(across, launch.groups);
  const auto block_of_pixels = b.div(a.block, of_pixels);
  const auto rest = b.sub(a.block, b.mul(block_of_pixels, of_pixels));
  const auto group = b.div(rest, across);
  const auto first_panel = b.mul(b.sub(rest, b.mul(group, across)), b.constant(panels * turns));
  const auto first = b.mul(block_of_pixels, b.constant(pixels));
  const auto count = b.min(b.sub(launch.m, first), b.constant(pixels));
  const auto tiles_here = rounded_up(b, count, tokens), tokens_here = b.mul(tiles_here, b.constant(tokens));
  const auto panels_here = b.min(b.sub(launch.panels, first_panel), b.constant(panels * turns));
  const auto turns_here = rounded_up(b, panels_here, panels);

  const Gather<B> gather(b, launch, f, places, group);
  const ConvOutput<B> output(b, launch, f, memory);
  const auto all_columns = launch.panel_columns(b, weights), panel_bytes = launch.panel_bytes(b, weights);
  const auto all_panels = f.packed ? b.load_ptr(b.at(launch.args, offsetof(ConvArgs, w))) : launch.scratch;
  const auto w = b.at(all_panels, b.mul(b.add(b.mul(group, launch.panels), first_panel), panel_bytes));
  gather.place(b, first, tokens_here);
  b.loop(b.constant(0), b.mul(turns_here, b.constant(turn_bytes)), vector_bytes, {},
         [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
  b.loop(b.constant(0), all_columns, kPart, {}, [&](const typename B::I64& begin) {
    const auto end = b.min(b.add(begin, b.constant(kPart)), all_columns);
    const auto gathered = b.min(end, launch.columns);
    gather.columns(b, begin, gathered, tokens_here, x);
    if (column_step(weights) == 2)  // a zero behind an odd last column
      b.if_less(gathered, end, [&] {
        const auto behind = b.at(x, b.mul(b.sub(gathered, begin), b.constant(4)));
        b.loop(b.constant(0), tokens_here, 1, {}, [&](const typename B::I64& i) {
          b.store_first(b.at(behind, b.mul(i, b.constant(kPixelBytes))), b.zero_floats());
        });
      });
    const auto w_part = b.at(w, b.mul(begin, b.constant(kPanelRows * bytes_of(weights))));
    b.loop(b.constant(0), turns_here, 1, {}, [&](const typename B::I64& turn) {
      const auto panel = b.mul(turn, b.constant(panels));
      // Where fewer panels are left than a tile has, the last one stands for those that are missing.
      std::array<typename B::Ptr, kFloatSums> from;
      for (int p = 0; p < panels; ++p)
        from[p] =
            b.at(w_part, b.mul(b.min(b.add(panel, b.constant(p)), b.sub(panels_here, b.constant(1))), panel_bytes));
      const auto of_turn = b.at(sums, b.mul(turn, b.constant(turn_bytes)));
      b.loop(b.constant(0), tiles_here, 1, {}, [&](const typename B::I64& tile) {
        add_products(b, weights, tokens, panels, b.sub(end, begin),
                     b.at(x, b.mul(tile, b.constant(tokens * kPixelBytes))), 4, kPixelBytes, from,
                     b.at(of_turn, b.mul(tile, b.constant(tile_bytes))));
      });
    });
  });
  b.loop(b.constant(0), turns_here, 1, {}, [&](const typename B::I64& turn) {
    const auto of_turn = b.at(sums, b.mul(turn, b.constant(turn_bytes)));
    const auto first_row = b.mul(b.add(first_panel, b.mul(turn, b.constant(panels))), b.constant(kPanelRows));
    b.loop(b.constant(0), b.constant(panels * kPanelRows), b.lanes(), {}, [&](const typename B::I64& r) {
      const auto row = b.add(first_row, r);
      const auto left = b.sub(launch.rows, row);
      b.if_less(b.constant(0), left, [&] {
        const auto of_row = b.at(of_turn, b.mul(r, b.constant(4)));
        const auto channel = b.add(b.mul(group, launch.rows), row);
        b.loop(b.constant(0), count, 1, {}, [&](const typename B::I64& t) {
          output.store(b, b.add(first, t), channel, left,
                       b.load_floats(b.at(of_row, b.mul(t, b.constant(pixel_bytes)))));
        });
      });
    });
  });
}

// ---- depthwise: a filter for each channel, channels side by side in a vector

constexpr int kMostTaps = kPart;  // one part of columns
constexpr int kTapBytes = 16;     // where a tap's channels are in x, and in w

constexpr std::int64_t depthwise_stack(int pixels) {
  return std::int64_t{pixels} * kPlaceBytes + kMostTaps * kTapBytes + 2 * 64 + 64;
}

// Writes w as single-precision numbers, tap by tap, with a tap's channels side by side: kPanelRows channels a block.
template <class B>
void widen_filters(B& b, const typename B::Arguments& a, const Filter& f) {
  const ConvLaunch<B> launch(b, a, f);
  const auto w = b.load_ptr(b.at(launch.args, offsetof(ConvArgs, w)));
  const int bytes = bytes_of(f.w);
  b.loop(b.constant(0), b.constant(kPanelRows), 1, {}, [&](const typename B::I64& c) {
    const auto channel = b.add(b.mul(a.block, b.constant(kPanelRows)), c);
    auto scale = b.splat(1.0f);
    if (f.w_has_scales) {
      const auto scales = b.load_ptr(b.at(launch.args, offsetof(ConvArgs, w) + offsetof(Operand, scales)));
      scale = b.splat_floats(b.at(scales, b.mul(channel, b.constant(4))));
    }
    b.loop(b.constant(0), launch.taps, 1, {}, [&](const typename B::I64& tap) {
      const auto from = b.at(w, b.mul(b.add(b.mul(channel, launch.taps), tap), b.constant(bytes)));
      const auto to = b.at(launch.scratch, b.mul(b.add(b.mul(tap, launch.all_channels), channel), b.constant(4)));
      const auto v = splat_as(b, f.w, from);
      b.store_first(to, f.w_has_scales ? b.mul(v, scale) : v);
    });
  });
}

// A block has `pixels` pixels. For each it writes down where the taps are that it sees, and then sums them up for
// `together` vectors of channels at a time.
template <class B, class Together>
void depthwise(B& b, const typename B::Arguments& a, const Filter& f, int pixels, Together together) {
  const ConvLaunch<B> launch(b, a, f);
  const int bytes = bytes_of(f.x), lanes = b.lanes();
  const auto places = b.stack(depthwise_stack(pixels));
  const auto taps = b.at(places, std::int64_t{pixels} * kPlaceBytes), memory = b.at(taps, kMostTaps * kTapBytes),
             seen = b.at(memory, 2 * 64);
  const auto first = b.mul(a.block, b.constant(pixels));
  const auto count = b.min(b.sub(launch.m, first), b.constant(pixels));
  const Gather<B> gather(b, launch, f, places, b.constant(0));
  const ConvOutput<B> output(b, launch, f, memory);
  gather.place(b, first, count);
  const auto in_groups = b.mul(b.div(launch.all_channels, b.constant(together * lanes)), b.constant(together * lanes));
  b.loop(b.constant(0), count, 1, {}, [&](const typename B::I64& i) {
    const auto place = b.at(places, b.mul(i, b.constant(kPlaceBytes)));
    const auto image = b.load_i64(place);
    b.store_i64(seen, b.constant(0));
    b.loop(b.constant(0), launch.taps, 1, {}, [&](const typename B::I64& tap) {
      const auto spot = gather.locate(b, place, gather.offsets(b, tap));
      b.if_less(spot.outside, b.constant(1), [&] {
        const auto number = b.load_i64(seen);
        const auto to = b.at(taps, b.mul(number, b.constant(kTapBytes)));
        b.store_i64(to, b.mul(b.mul(gather.number(b, image, spot), launch.all_channels), b.constant(bytes)));
        b.store_i64(b.at(to, 8), b.mul(b.mul(tap, launch.all_channels), b.constant(4)));
        b.store_i64(seen, b.add(number, b.constant(1)));
      });
    });
    const auto taps_here = b.load_i64(seen);
    const auto channels = [&](const typename B::I64& begin, const typename B::I64& end, auto vectors) {
      b.loop(begin, end, vectors * lanes, {}, [&](const typename B::I64& c) {
        const auto x = b.at(gather.x(), b.mul(c, b.constant(bytes)));
        const auto w = b.at(launch.scratch, b.mul(c, b.constant(4)));
        std::array<typename B::Floats, 8> acc;
        for (int v = 0; v < vectors; ++v) acc[v] = b.zero_floats();
        b.loop(b.constant(0), taps_here, 1, std::span(acc.data(), static_cast<std::size_t>(vectors)),
               [&](const typename B::I64& tap) {
                 const auto at = b.at(taps, b.mul(tap, b.constant(kTapBytes)));
                 const auto x_at = b.at(x, b.load_i64(at)), w_at = b.at(w, b.load_i64(b.at(at, 8)));
                 for (int v = 0; v < vectors; ++v)
                   acc[v] = b.fma(b.load_floats(b.at(w_at, 4 * lanes * v)),
                                  load_as(b, f.x, b.at(x_at, bytes * lanes * v)), acc[v]);
               });
        for (int v = 0; v < vectors; ++v)
          output.store(b, b.add(first, i), b.add(c, b.constant(v * lanes)), b.constant(lanes), acc[v]);
      });
    };
    channels(b.constant(0), in_groups, together);
    channels(in_groups, launch.all_channels, std::integral_constant<int, 1>());
  });
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
