// SPDX-License-Identifier: Apache-2.0
// x written to the workspace as boxes are read from there (prologue.cuh): channels innermost, in whole pieces of 16
// bytes, in the elements that the matrix units take; what a cache has, in front of x. It may be fake quantized on the
// way, along its channels. What is fake quantized along columns is written unfolded: for each pixel of y all that it
// sees, as the channels of one pixel.
#pragma once
#include "backends/cuda/numeric.cuh"
#include "backends/cuda/runs.cuh"
#include "backends/cuda/sm90.cuh"
#include "formats/shared/format.cuh"
#include "operations/conv/params.cuh"
#include "operations/fp4_fake_quant/cuda/fp4_fake_block.cuh"

namespace tw::conv {

// A column of what is unfolded: its channel, and how far its tap is from the first one on each axis.
struct alignas(16) UnfoldedColumn {
  i32 channel, tap[3];
};
// The shared memory that a piece of x of so many bytes takes: behind those of an unfolded one lie its columns.
TW_CONSTANTS(int, kLeastPiece = 32 * 1024, kMostPiece = 128 * 1024, kUnfoldedColumns = 256);
TW_FN constexpr int pixels_room(int piece, bool unfolds) {
  return piece + (unfolds ? kUnfoldedColumns * static_cast<int>(sizeof(UnfoldedColumn)) : 0);
}
// Bytes of a piece where there is room for so many. For each piece a block waits four times, for what it loads, stores,
// has taken and counts, so large ones are faster.
TW_FN constexpr int piece_bytes(int room, bool unfolds) {
  int piece = kMostPiece;
  while (piece > kLeastPiece && pixels_room(piece, unfolds) > room) piece /= 2;
  return piece;
}

// From: elements of x as a launch passes them; To: as they are written. quant_block: channels that are fake
// quantized together; 0: they are not.
// PIECE: bytes.
template <class From, class To, int THREADS, int PIECE, int quant_block, bool unfolds>
struct ChannelsLast {
  TW_CONSTANTS(int, kStore = 16 / static_cast<int>(sizeof(To)));     // channels of one store
  TW_CONSTANTS(int, kUnit = quant_block > 0 ? 8 : kStore);           // channels that a thread writes at a time
  TW_CONSTANTS(int, kVector = 16 / static_cast<int>(sizeof(From)));  // elements that it loads at a time
  // A piece: pixels of a frame by channels, whole blocks of them, turned in shared memory where channels come first.
  // There a vector of pixels has its place XORed with the number of its eight channels, so that units are read without
  // conflicts.
  TW_CONSTANTS(int, kChannels = unfolds ? kUnfoldedColumns : max2(64, quant_block),
               kPixels = PIECE / static_cast<int>(sizeof(From)) / kChannels, kUnits = kChannels / kUnit);
  static_assert(quant_block == 0 || (quant_block / kUnit <= 32 && THREADS % 32 == 0), "a warp has whole blocks");
  // Loads of a thread that wait together. The more threads, the fewer registers each has for them.
  TW_CONSTANTS(int, kTogether = ceil_div(1536, THREADS), kAhead = min2(kTogether, ceil_div(kPixels* kUnits, THREADS)),
               kTurnAhead = min2(kTogether, ceil_div(kPixels* kChannels / kVector, THREADS)), kSingleAhead = 16);
  TW_MEMBER static int turned_at(int channel, int pixel) {
    // No vectors are stored: the threads of a warp, which read eights of channels of a pixel, find each a bank.
    constexpr int kEach = sizeof(From) == 4 ? 1 : 2;
    if (unfolds) return channel * kPixels + (pixel ^ (channel / 8 * kEach % kPixels));
    return channel * kPixels + ((pixel / kVector) ^ (channel / 8 % 8)) * kVector + pixel % kVector;
  }

  const Args& args;
  const Shape &source, &shape;  // the problem's, and as it is written
  To* x;                        // as it is written
  From* turned;                 // shared memory

  TW_MEMBER i64 plane() const { return i64{shape.axes[1].in} * shape.axes[2].in; }  // pixels of a frame
  TW_MEMBER i64 runs() const { return ceil_div64(plane(), kPixels); }               // of pixels, in a frame
  TW_MEMBER i64 blocks() const { return ceil_div(shape.c, kChannels); }             // of channels
  TW_MEMBER u32 pieces() const { return static_cast<u32>(shape.n * shape.axes[0].in * runs() * blocks()); }
  TW_MEMBER void write(u32 piece, int thread) const {
    const i64 run = piece / blocks();
    write_pixels(run / runs(), run % runs() * kPixels, static_cast<i32>(piece % blocks()) * kChannels, plane(), thread);
  }

 private:
  TW_MEMBER static To converted(From v) {
    if constexpr (same<From, To>())
      return v;
    else
      return from_f32<To>(to_f32(v));
  }
  struct Unit {
    From of[kUnit];
  };
  // value(i) of the elements that exist, else zero.
  template <class Value>
  TW_MEMBER static Unit collect(i32 exist, const Value& value) {
    Unit unit;
    TW_UNROLL for (int i = 0; i < kUnit; ++i) unit.of[i] = i < exist ? value(i) : From{};
    return unit;
  }
  // The first `count` channels of a unit, whole stores.
  TW_MEMBER static void write(To* to, const Unit& unit, i32 count) {
    alignas(16) To values[kUnit];
    TW_UNROLL for (int i = 0; i < kUnit; ++i) values[i] = converted(unit.of[i]);
    TW_UNROLL for (int i = 0; i < kUnit; i += kStore) if (kUnit == kStore || i < count) *
        reinterpret_cast<u32x4*>(to + i) = *reinterpret_cast<const u32x4*>(values + i);
  }
  // By all lanes of a warp, neighbours of which have a block's units.
  TW_MEMBER static void quantize(Unit& unit, const Fp4Scales& scales) {
    u32 words[sizeof(Unit) / 4];
    float v[1][kUnit];
    TW_COPY(words, &unit, sizeof(Unit));
    cast::to_floats<From, kUnit>(v[0], words);
    fp4_fake_block<quant_block / kUnit>(v, scales);
    cast::from_floats<From, kUnit>(words, v[0]);
    TW_COPY(&unit, words, sizeof(Unit));
  }
  TW_MEMBER static void load(From (&to)[kVector], const From* from) {
    *reinterpret_cast<u32x4*>(to) = *reinterpret_cast<const u32x4*>(from);
  }

  // Pixels from `pixel0` on of a frame of an image, channels from c0 on.
  TW_MEMBER void write_pixels(i64 frame, i64 pixel0, i32 c0, i64 plane, int thread) const {
    const i32 channels = written_channels(shape.c, sizeof(To));
    To* const to = x + (frame * plane + pixel0) * channels + c0;
    const int pixels = static_cast<int>(min2(i64{kPixels}, plane - pixel0));
    if constexpr (unfolds) {
      unfold(frame, static_cast<u32>(pixel0), c0, pixels, min2(kChannels, shape.c - c0), thread);
      write_turned(to, pixels, channels, c0, thread);
    } else {
      write_as_they_lie(to, frame, pixel0, c0, plane, pixels, channels, thread);
    }
  }
  TW_MEMBER void write_as_they_lie(To* to, i64 frame, i64 pixel0, i32 c0, i64 plane, int pixels, i32 channels,
                                   int thread) const {
    const i32 depth = shape.axes[0].in, z = static_cast<i32>(frame % depth), cached = shape.cache;
    const i64 image = frame / depth, own_depth = z < cached ? cached : depth - cached,
              own_z = z < cached ? z : z - cached;
    const From* const from = static_cast<const From*>(z < cached ? args.cache : args.x.data);
    if (shape.x_channels_first) {
      turn(from + ((image * shape.c + c0) * own_depth + own_z) * plane + pixel0, own_depth * plane, pixels,
           min2(kChannels, shape.c - c0), thread);
      write_turned(to, pixels, channels, c0, thread);
    } else {
      const From* const rows = from + ((image * own_depth + own_z) * plane + pixel0) * shape.c + c0;
      const bool vectors = shape.c % max2(kUnit, kVector) == 0;
      write_units(to, pixels, channels, c0, thread, [&](int p, int c) {
        const From* const unit = rows + i64{p} * shape.c + c;
        if (kUnit < kVector || !vectors) return collect(shape.c - c0 - c, [&](int i) { return unit[i]; });
        Unit u;
        TW_UNROLL for (int i = 0; i < max2(1, kUnit / kVector); ++i) {
          alignas(16) From v[kVector];
          load(v, unit + i * kVector);
          TW_UNROLL for (int j = 0; j < min2(kVector, kUnit); ++j) u.of[min2(i * kVector + j, kUnit - 1)] = v[j];
        }
        return u;
      });
    }
  }
  // What lies in shared memory.
  TW_MEMBER void write_turned(To* to, int pixels, i32 channels, i32 c0, int thread) const {
    sync_block();
    write_units(to, pixels, channels, c0, thread,
                [&](int p, int c) { return collect(kUnit, [&](int i) { return turned[turned_at(c + i, p)]; }); });
  }
  // unit(pixel, channel) to where it belongs; some are loaded before the first is written.
  template <class Read>
  TW_MEMBER void write_units(To* to, int pixels, i32 channels, i32 c0, int thread, const Read& unit) const {
    const int end = pixels * kUnits;
    TW_NO_UNROLL for (int first = thread; first < (end + 31) / 32 * 32; first += kAhead * THREADS) {
      Unit units[kAhead];
      if constexpr (quant_block > 0) TW_UNROLL for (int i = 0; i < kAhead; ++i) units[i] = {};
      const auto each = [&](const auto& visit) {
        TW_UNROLL for (int i = 0; i < kAhead; ++i) {
          const int at = first + i * THREADS, c = at % kUnits * kUnit;
          if (at < end && c0 + c < channels) visit(i, at / kUnits, c);
        }
      };
      each([&](int i, int p, int c) { units[i] = unit(p, c); });
      if constexpr (quant_block > 0) {
        const Fp4Scales scales(*args.amax);
        TW_UNROLL for (int i = 0; i < kAhead; ++i) quantize(units[i], scales);
      }
      each([&](int i, int p, int c) { write(to + i64{p} * channels + c, units[i], channels - c0 - c); });
    }
  }
  // `count` columns from c0 on that pixels of an image see, from pixel0 on; those that do not exist are zeros. A warp
  // has neighbouring pixels of one column at a time.
  TW_MEMBER void unfold(i64 image, u32 pixel0, i32 c0, int pixels, int count, int thread) const {
    UnfoldedColumn* const columns = reinterpret_cast<UnfoldedColumn*>(turned + kChannels * kPixels);
    const Axis* axes = source.axes;
    for (int i = thread; i < count; i += THREADS) {
      const i32 taps = static_cast<i32>(source.taps()), tap = (c0 + i) % taps, row = tap / axes[2].kernel;
      columns[i] = {(c0 + i) / taps,
                    {row / axes[1].kernel * axes[0].dilation, row % axes[1].kernel * axes[1].dilation,
                     tap % axes[2].kernel * axes[2].dilation}};
    }
    sync_block();
    const bool channels_first = source.x_channels_first != 0;
    const i64 all = i64{axes[0].in} * axes[1].in * axes[2].in, frame = all / axes[source.first_axis].in;
    const auto tensor = [&](const void* data, i64 of) {
      return Tensor{static_cast<const From*>(data) + image * source.c * of, channels_first ? of : 1,
                    channels_first ? 1 : source.c};
    };
    const Tensor own = tensor(args.x.data, all - source.cache * frame),
                 cached = tensor(args.cache, source.cache * frame);
    constexpr int kWarps = THREADS / 32;
    const int end = (count + kUnit - 1) / kUnit * kUnit;  // whole units
    TW_NO_UNROLL for (int p = thread % 32; p < kPixels; p += 32) {
      const u32 pixel = pixel0 + static_cast<u32>(p), width = static_cast<u32>(axes[2].out),
                height = static_cast<u32>(axes[1].out), line = pixel / width;
      const u32 of[3] = {line / height, line % height, pixel % width};
      i32 first_tap[3];
      TW_UNROLL for (int a = 0; a < 3; ++a) first_tap[a] = static_cast<i32>(of[a]) * axes[a].stride - axes[a].lo;
      TW_NO_UNROLL for (int first = thread / 32; first < end; first += kSingleAhead * kWarps) {
        From v[kSingleAhead];
        TW_UNROLL for (int i = 0; i < kSingleAhead; ++i) {
          const int c = first + i * kWarps;
          v[i] = From{};
          if (c < count && p < pixels) seen(v[i], own, cached, columns[c], first_tap);
        }
        TW_UNROLL for (int i = 0; i < kSingleAhead; ++i) {
          const int c = first + i * kWarps;
          if (c < end) turned[turned_at(c, p)] = v[i];
        }
      }
    }
  }
  // An image of x or of the cache: elements from a channel to the next, and from a pixel.
  struct Tensor {
    const From* from;
    i64 channel, pixel;
  };
  // The element of a column, if it is no zero of the padding.
  TW_MEMBER void seen(From& v, const Tensor& own, const Tensor& cached, const UnfoldedColumn& column,
                      const i32 (&first_tap)[3]) const {
    i32 at[3];
    TW_UNROLL for (int a = 0; a < 3; ++a) at[a] = place_on(source.axes[a], first_tap[a] + column.tap[a]);
    if ((at[0] | at[1] | at[2]) < 0) return;
    const Source place = source_at(source, at[0], at[1], at[2]);
    const From* const x = place.cached ? cached.from : own.from;
    v = x[column.channel * (place.cached ? cached.channel : own.channel) + place.pixel * own.pixel];
  }
  // `count` channels of pixels, the channels `step` elements apart; those that do not exist are zeros.
  TW_MEMBER void turn(const From* from, i64 step, int pixels, int count, int thread) const {
    const bool vectors =
        step % kVector == 0 && pixels % kVector == 0 && reinterpret_cast<unsigned long long>(from) % 16 == 0;
    if (vectors) {
      constexpr int kRow = kPixels / kVector, kEnd = kChannels * kRow;
      TW_NO_UNROLL for (int first = thread; first < kEnd; first += kTurnAhead * THREADS) {
        alignas(16) From v[kTurnAhead][kVector];
        TW_UNROLL for (int i = 0; i < kTurnAhead; ++i) {
          const int at = first + i * THREADS, c = at / kRow, p = at % kRow * kVector;
          TW_UNROLL for (int j = 0; j < kVector; ++j) v[i][j] = From{};
          if (c < count && p < pixels) load(v[i], from + c * step + p);
        }
        TW_UNROLL for (int i = 0; i < kTurnAhead; ++i) {
          const int at = first + i * THREADS, c = at / kRow, p = at % kRow * kVector;
          if (at >= kEnd || p >= pixels) continue;
          *reinterpret_cast<u32x4*>(turned + turned_at(c, p)) = *reinterpret_cast<const u32x4*>(v[i]);
        }
      }
    } else {
      constexpr int kEnd = kChannels * kPixels;
      TW_NO_UNROLL for (int first = thread; first < kEnd; first += kSingleAhead * THREADS) {
        From v[kSingleAhead];
        TW_UNROLL for (int i = 0; i < kSingleAhead; ++i) {
          const int at = first + i * THREADS, c = at / kPixels, p = at % kPixels;
          v[i] = c < count && p < pixels ? from[c * step + p] : From{};
        }
        TW_UNROLL for (int i = 0; i < kSingleAhead; ++i) {
          const int at = first + i * THREADS, c = at / kPixels, p = at % kPixels;
          if (at < kEnd && p < pixels) turned[turned_at(c, p)] = v[i];
        }
      }
    }
  }
};

}  // namespace tw::conv
