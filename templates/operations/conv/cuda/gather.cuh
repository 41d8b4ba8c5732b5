// SPDX-License-Identifier: Apache-2.0
// x for the kernels of gemm: rows are output pixels, and their columns the taps of the kernel with the channels of
// each, or channels with the taps of each, as w has them. They are gathered from where they lie. A thread keeps the
// origins of its pixels and the tap and channel of its columns and moves on from stage to stage, without a division
// for an element.
#pragma once
#include "backends/cuda/runs.cuh"
#include "operations/conv/cuda/gather_knobs.cuh"
#include "operations/conv/params.cuh"
#include "operations/fp4_fake_quant/cuda/fp4_fake_block.cuh"
#include "operations/gemm/cuda/mma/staging.cuh"

namespace tw::conv {

struct GatherSource {
  const Args& args;
  const Shape& shape;
  i32 first, channels;  // of the group
  u32 block;            // of the group's
  i32* table;           // in shared memory, GatherKnobs::table_bytes()
};

// An output pixel: its image, and where the first tap is on the axes. Images beyond the last have none: -1.
struct Pixel {
  i32 image, origin[3];
  TW_MEMBER void find(const Shape& shape, i64 m, bool exists) {
    const Axis* axes = shape.axes;
    const i64 pixels = shape.pixels();
    exists = exists && m < shape.n * pixels;
    image = exists ? static_cast<i32>(m / pixels) : -1;
    i64 rest = exists ? m % pixels : 0;
    TW_UNROLL for (int a = 2; a >= 0; --a) {
      origin[a] = static_cast<i32>(rest % axes[a].out * axes[a].stride - axes[a].lo);
      rest /= axes[a].out;
    }
  }
};

// Channels innermost in x and w, in whole pieces of E.
template <class T, int ROWS, int BK, int E, int THREADS, bool ASYNC, bool PAIRS>
struct GatheredPieces : gemm::PlainTile<T, ROWS, BK, E, THREADS> {
  using Base = gemm::PlainTile<T, ROWS, BK, E, THREADS>;
  TW_CONSTANTS(int, kPieces = Base::kPieces, kEach = Base::kEach, kRowBytes = Base::kRowBytes,
               kStep = THREADS / kPieces, kBytes = E * static_cast<int>(sizeof(T)));
  static_assert(THREADS % kPieces == 0, "a thread's pieces are below each other");

  Pixel pixel[kEach];
  i32 channel, tap[3];  // of its columns in the next stage

  // For a tile from pixel row0 on, and columns from k0 on.
  TW_MEMBER void start(const GatherSource& s, i64 row0, i64 k0) {
    const Axis* axes = s.shape.axes;
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int row = static_cast<int>(thread_x()) / kPieces + i * kStep;
      pixel[i].find(s.shape, row0 + (PAIRS ? gemm::paired_row(row) : row), row < ROWS);
    }
    const i64 k = k0 + static_cast<int>(thread_x()) % kPieces * E;
    channel = static_cast<i32>(k % s.channels);
    i64 rest = k / s.channels;
    tap[2] = static_cast<i32>(rest % axes[2].kernel), rest /= axes[2].kernel;
    tap[1] = static_cast<i32>(rest % axes[1].kernel), tap[0] = static_cast<i32>(rest / axes[1].kernel);
  }

  // Stages come one behind the other.
  TW_MEMBER void fetch(const GatherSource& s, i64, i64, u8* tile) {
    const Axis* axes = s.shape.axes;
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      if (ROWS * kPieces % THREADS != 0 && t >= ROWS * kPieces) break;
      i32 at[3];
      TW_UNROLL for (int a = 0; a < 3; ++a) at[a] = place_on(axes[a], pixel[i].origin[a] + tap[a] * axes[a].dilation);
      const bool inside = pixel[i].image >= 0 && tap[0] < axes[0].kernel && at[0] >= 0 && at[1] >= 0 && at[2] >= 0;
      const u8* from = static_cast<const u8*>(s.args.x.data);
      if (inside) {
        const Source source = source_at(s.shape, at[0], at[1], at[2]);
        if (source.cached) from = static_cast<const u8*>(s.args.cache);
        from += ((pixel[i].image * source.pixels + source.pixel) * s.shape.c + s.first + channel) *
                static_cast<i64>(sizeof(T));
      }
      if constexpr (ASYNC) {
        const int byte = t % kPieces * kBytes;
        cp_async<kBytes>(tile + swizzled<kRowBytes>(t / kPieces, byte / 16) + byte % 16, from, inside ? kBytes : 0);
      } else {
        this->unit[i] = {};
        if (inside) Base::F::template load<E>(this->unit[i], from, nullptr, 0);
      }
    }
    channel += BK;
    TW_NO_UNROLL while (channel >= s.channels) {
      channel -= s.channels;
      if (++tap[2] < axes[2].kernel) continue;
      tap[2] = 0;
      if (++tap[1] < axes[1].kernel) continue;
      tap[1] = 0, ++tap[0];
    }
  }
  TW_MEMBER void place(u8* tile) {
    if constexpr (!ASYNC) Base::place(tile);
  }
};

// A column of x as the digits of its number, the innermost first: places of the kernel and, last or first, a channel.
template <bool taps_innermost>
struct Column {
  i32 digit[4];

  TW_MEMBER static i32 extent(const GatherSource& s, int i) {
    if (taps_innermost) return i == 3 ? s.channels : s.shape.axes[2 - i].kernel;
    return i == 0 ? s.channels : s.shape.axes[3 - i].kernel;
  }
  TW_MEMBER i32 channel() const { return digit[taps_innermost ? 3 : 0]; }
  TW_MEMBER i32 tap(int axis) const { return digit[taps_innermost ? 2 - axis : 3 - axis]; }
  TW_MEMBER bool exists(const GatherSource& s) const { return digit[3] < extent(s, 3); }

  TW_MEMBER void find(const GatherSource& s, i64 k) {
    TW_UNROLL for (int i = 0; i < 3; ++i) {
      digit[i] = static_cast<i32>(k % extent(s, i));
      k /= extent(s, i);
    }
    digit[3] = static_cast<i32>(k);
  }
  TW_MEMBER void add(const GatherSource& s, const Column& other) {
    i32 carry = 0;
    TW_UNROLL for (int i = 0; i < 3; ++i) {
      digit[i] += other.digit[i] + carry;
      carry = digit[i] >= extent(s, i);
      if (carry) digit[i] -= extent(s, i);
    }
    digit[3] += other.digit[3] + carry;
  }
  // `count` columns on, which are a divisor of the innermost extent.
  TW_MEMBER void advance(const GatherSource& s, i32 count) {
    i32 carry = count;
    TW_UNROLL for (int i = 0; i < 3; ++i) {
      digit[i] += carry;
      carry = digit[i] >= extent(s, i);
      if (carry) digit[i] = 0;
    }
    digit[3] += carry;
  }
};

// Any layout: loads of E channels, one at a time where channels or columns are apart. Neighbouring threads take the
// same columns of neighbouring pixels, which lie side by side in a channel; a thread collects 16 bytes of each of its
// rows.
template <class T, int ROWS, int BK, int THREADS, const GatherKnobs& knobs>
struct GatheredElements {
  TW_CONSTANTS(int, kSize = sizeof(T), kRowBytes = BK * kSize, kChunks = kRowBytes / 16, kStep = THREADS / kChunks,
               kEach = ceil_div(ROWS, kStep));
  TW_CONSTANTS(int, kUnit = knobs.unit, kBytes = kUnit * kSize, kLoads = 16 / kBytes, kWords = ceil_div(kBytes, 4));
  TW_CONSTANTS(bool, kTable = knobs.taps == Taps::table, kCached = knobs.cached);
  static_assert(THREADS % kChunks == 0, "a thread's chunks are below each other");
  static_assert(kUnit == 1 || !knobs.taps_innermost, "neighbouring columns are taps");

  Column<knobs.taps_innermost> column, stage;  // of its chunk in the next stage; the columns of a stage
  // Of each of its pixels: where the image, or without a table the first tap is, which may be outside of x; the image
  // in the cache; and bits of the places of the kernel that are in x.
  u64 from[kEach], from_cache[kEach];
  u32 inside[kEach];
  // Bytes: from a channel to the next, there and in the cache; from a pixel to the next; and from a tap, on each axis.
  i64 channel_step, cache_step;
  i32 pixel_step, steps[3];
  u32 raw[kEach][kLoads][kWords];

  TW_MEMBER static int row_of(int i) { return static_cast<int>(thread_x()) % kStep + i * kStep; }
  TW_MEMBER static i64 pixel_of(i64 row0, int row) {
    return row0 + (knobs.y_channels_first ? gemm::paired_row(row) : row);
  }

  TW_MEMBER void start(const GatherSource& s, i64 row0, i64 k0) {
    column.find(s, k0 + static_cast<int>(thread_x()) / kStep * (16 / kSize));
    stage.find(s, BK);
    const Axis* axes = s.shape.axes;
    const bool channels_first = s.shape.x_channels_first != 0;
    const i64 all = i64{axes[0].in} * axes[1].in * axes[2].in, frame = all / axes[s.shape.first_axis].in,
              pixels = all - s.shape.cache * frame;
    pixel_step = (channels_first ? 1 : s.shape.c) * kSize;
    channel_step = (channels_first ? pixels : 1) * kSize;
    cache_step = (channels_first ? s.shape.cache * frame : 1) * kSize;
    const i64 widths[3] = {i64{axes[1].in} * axes[2].in, axes[2].in, 1};
    TW_UNROLL for (int a = 0; a < 3; ++a) steps[a] = static_cast<i32>(widths[a] * axes[a].dilation * pixel_step);
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      Pixel pixel;
      pixel.find(s.shape, pixel_of(row0, row_of(i)), row_of(i) < ROWS);
      const i64 channels = i64{pixel.image} * s.shape.c * kSize;
      i64 at = channels * pixels + s.first * channel_step;
      inside[i] = 0;
      if constexpr (!kTable) {
        TW_UNROLL for (int a = 0; a < 3; ++a) at += pixel.origin[a] * widths[a] * pixel_step;
        if (pixel.image >= 0) inside[i] = knobs.taps == Taps::all ? 1 : bits_of(axes, pixel);
      }
      from[i] = reinterpret_cast<u64>(s.args.x.data) + static_cast<u64>(at);
      from_cache[i] = reinterpret_cast<u64>(s.args.cache) +
                      static_cast<u64>(channels * s.shape.cache * frame + s.first * cache_step);
    }
    if constexpr (kTable) {
      fill_table(s, row0);
      sync_block();
    }
  }

  TW_MEMBER void fetch(const GatherSource& s, i64, i64, u8*) {
    const Axis* axes = s.shape.axes;
    Column<knobs.taps_innermost> at = column;
    TW_UNROLL for (int l = 0; l < kLoads; ++l) {
      const i64 channel = at.channel() * channel_step;
      const bool exists = at.exists(s);
      if constexpr (kTable) {
        const i64 channel_of_cache = at.channel() * cache_step;
        const i32* const table[3] = {s.table + at.tap(0) * ROWS, s.table + (axes[0].kernel + at.tap(1)) * ROWS,
                                     s.table + (axes[0].kernel + axes[1].kernel + at.tap(2)) * ROWS};
        TW_UNROLL for (int i = 0; i < kEach; ++i) {
          const int row = row_of(i);
          i32 place[3] = {-1, -1, -1};
          if (exists && (ROWS % kStep == 0 || row < ROWS))
            TW_UNROLL for (int a = 0; a < 3; ++a) place[a] = table[a][row];
          const bool is_inside = (place[0] | place[1] | place[2]) >= 0;
          i32 pixel =
              static_cast<i32>(static_cast<u32>(place[0]) + static_cast<u32>(place[1]) + static_cast<u32>(place[2]));
          u64 address = from[i] + static_cast<u64>(channel);
          if (kCached && (pixel & kInCache)) address = from_cache[i] + static_cast<u64>(channel_of_cache);
          if constexpr (kCached) pixel &= ~kInCache;
          address += static_cast<u64>(i64{pixel} * pixel_step);
          load_words_if<kBytes>(raw[i][l], reinterpret_cast<const void*>(address), is_inside);
        }
      } else {
        u32 offset = 0, needed = 1;
        TW_UNROLL for (int a = 0; a < 3; ++a) offset += static_cast<u32>(at.tap(a)) * static_cast<u32>(steps[a]);
        if constexpr (knobs.taps == Taps::zeros)
          needed = 1u << (at.tap(0) & 31) | 1u << ((axes[0].kernel + at.tap(1)) & 31) |
                   1u << ((axes[0].kernel + axes[1].kernel + at.tap(2)) & 31);
        if (!exists) needed = 1u << kMostBits;
        const u64 bytes = static_cast<u64>(channel + static_cast<i32>(offset));
        TW_UNROLL for (int i = 0; i < kEach; ++i) load_words_if<kBytes>(
            raw[i][l], reinterpret_cast<const void*>(from[i] + bytes), (inside[i] & needed) == needed);
      }
      at.advance(s, kUnit);
    }
    column.add(s, stage);
  }
  TW_MEMBER void place(u8* tile) {
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      if (ROWS % kStep != 0 && row_of(i) >= ROWS) break;
      gemm::place_chunk<kBytes>(tile + swizzled<kRowBytes>(row_of(i), static_cast<int>(thread_x()) / kStep), raw[i]);
    }
  }

 private:
  TW_MEMBER static u32 bits_of(const Axis* axes, const Pixel& pixel) {
    u32 bits = 0;
    int bit = 0;
    TW_UNROLL for (int a = 0; a < 3; ++a) TW_NO_UNROLL for (i32 t = 0; t < axes[a].kernel; ++t, ++bit) {
      const i32 at = pixel.origin[a] + t * axes[a].dilation;
      bits |= static_cast<u32>(at >= 0 && at < axes[a].in) << bit;
    }
    return bits;
  }
  // For each place of the kernel on each axis and each row: the part of the pixel's number that it makes up, negative
  // in zero padding.
  TW_MEMBER static void fill_table(const GatherSource& s, i64 row0) {
    const Axis* axes = s.shape.axes;
    TW_NO_UNROLL for (int t = static_cast<int>(thread_x()); t < knobs.places * ROWS; t += THREADS) {
      Pixel pixel;
      pixel.find(s.shape, pixel_of(row0, t % ROWS), true);
      i32 tap = t / ROWS, width = axes[1].in * axes[2].in, part = -1;
      TW_UNROLL for (int a = 0; a < 3; ++a) {
        if (tap >= 0 && tap < axes[a].kernel) {
          i32 at = pixel.image < 0 ? -1 : place_on(axes[a], pixel.origin[a] + tap * axes[a].dilation), flag = 0;
          if (at >= 0 && a == s.shape.first_axis) {
            if (at < s.shape.cache)
              flag = kInCache;
            else
              at -= s.shape.cache;
          }
          part = at < 0 ? -1 : at * width | flag;
        }
        tap -= axes[a].kernel;
        if (a < 2) width /= axes[a + 1].in;
      }
      s.table[t] = part;
    }
  }
};

// Fake quantizes rows of x where they were gathered to, in blocks of so many columns. Neighbouring threads take
// neighbouring pieces of a row.
template <class T, int ROWS, int BK, int THREADS, const GatherKnobs& knobs>
struct FakeQuantizer {
  TW_CONSTANTS(int, kStages = knobs.quant_stages(BK));
  TW_CONSTANTS(int, kElements = 16 / static_cast<int>(sizeof(T)), kPieces = BK / kElements,
               kLanes = min2(static_cast<int>(knobs.quant_block), BK) / kElements);
  static_assert(knobs.quant_block % BK == 0 || BK % knobs.quant_block == 0, "whole blocks, or whole stages");
  static_assert(ROWS * kPieces % 32 == 0 && kLanes <= 32, "whole warps share whole blocks");
  Fp4Scales scales;

  TW_MEMBER explicit FakeQuantizer(const GatherSource& s) : scales(*s.args.amax) {}

  // tile(i): the place of stage i, of which there are `count`.
  template <class Tile>
  TW_MEMBER void apply(int count, const Tile& tile) const {
    // Not unrolled: the registers belong to the accumulators.
    TW_NO_UNROLL for (int t = static_cast<int>(thread_x()); t < ROWS * kPieces; t += THREADS) {
      const int at = swizzled<BK* static_cast<int>(sizeof(T))>(t / kPieces, t % kPieces);
      float v[kStages][kElements] = {};
      TW_UNROLL for (int i = 0; i < kStages; ++i) {
        if (i >= count) continue;
        const u32x4 piece = *reinterpret_cast<const u32x4*>(tile(i) + at);
        cast::to_floats<T, kElements>(v[i], {piece.x, piece.y, piece.z, piece.w});
      }
      fp4_fake_block<kLanes>(v, scales);
      TW_UNROLL for (int i = 0; i < kStages; ++i) {
        if (i >= count) continue;
        u32 words[4];
        cast::from_floats<T, kElements>(words, v[i]);
        *reinterpret_cast<u32x4*>(tile(i) + at) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
};
struct NotQuantized {
  TW_CONSTANTS(int, kStages = 0);
  TW_MEMBER explicit NotQuantized(const GatherSource&) {}
};

// Input of gemm::Mma.
template <const GatherKnobs& knobs>
struct Gathered {
  using Source = GatherSource;
  TW_CONSTANTS(bool, kTransposed = knobs.y_channels_first);
  template <class T, int ROWS, int BK, int E, int THREADS, bool ASYNC>
  using Tile = select<knobs.unit == 0, GatheredPieces<T, ROWS, BK, E, THREADS, ASYNC, knobs.y_channels_first>,
                      GatheredElements<T, ROWS, BK, THREADS, knobs>>;
  template <class T, int ROWS, int BK, int THREADS>
  using Quantizer = select<knobs.quant_block != 0, FakeQuantizer<T, ROWS, BK, THREADS, knobs>, NotQuantized>;

  TW_MEMBER static u32 block(const Source& s) { return s.block; }
  // The place of an output pixel in y, channels first, and of a channel after another.
  TW_MEMBER static i64 y_row(const Source& s, i64 m) {
    const u32 pixels = static_cast<u32>(s.shape.pixels()), image = static_cast<u32>(m) / pixels;
    return i64{image} * s.shape.k * pixels + (static_cast<u32>(m) - image * pixels);
  }
  TW_MEMBER static i64 y_step(const Source& s) { return s.shape.pixels(); }
};

}  // namespace tw::conv
