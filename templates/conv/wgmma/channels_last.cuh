// SPDX-License-Identifier: Apache-2.0
// x written to the workspace as boxes are read from there (prologue.cuh): channels innermost, in whole pieces of 16
// bytes, in the elements that the matrix units take; what a cache has, in front of x.
#pragma once
#include "arch/sm90.cuh"
#include "conv/params.cuh"
#include "core/numeric.cuh"

namespace tw::conv {

// A piece of x, and the shared memory that it takes.
TW_CONSTANTS(int, kPiecePixels = 256, kPieceChannels = 64);
TW_FN constexpr int pixels_room(int element_bytes) { return kPiecePixels * kPieceChannels * element_bytes; }

// From: elements of x as a launch passes them; To: as they are written.
template <class From, class To, int THREADS>
struct ChannelsLast {
  TW_CONSTANTS(int, kUnit = 16 / static_cast<int>(sizeof(To)));      // channels that a thread writes at a time
  TW_CONSTANTS(int, kVector = 16 / static_cast<int>(sizeof(From)));  // elements that it loads at a time
  // A piece: pixels of a frame by channels, turned in shared memory where channels come first. There a vector of pixels
  // has its place XORed with the number of its eight channels, so that units are read without conflicts.
  TW_CONSTANTS(int, kPixels = kPiecePixels, kChannels = kPieceChannels, kUnits = kChannels / kUnit);
  // Loads of a thread that wait together: all of a piece, if that is not too many.
  TW_CONSTANTS(int, kAhead = min2(8, ceil_div(kPixels* kUnits, THREADS)),
               kTurnAhead = min2(8, ceil_div(kPixels* kChannels / kVector, THREADS)), kSingleAhead = 16);
  TW_MEMBER static int turned_at(int channel, int pixel) {
    return channel * kPixels + ((pixel / kVector) ^ (channel / 8 % 8)) * kVector + pixel % kVector;
  }

  const Args& args;
  const Shape& shape;
  To* x;         // as it is written
  From* turned;  // shared memory

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
  TW_MEMBER static void write(To* to, const Unit& unit) {
    alignas(16) To values[kUnit];
    TW_UNROLL for (int i = 0; i < kUnit; ++i) values[i] = converted(unit.of[i]);
    *reinterpret_cast<u32x4*>(to) = *reinterpret_cast<const u32x4*>(values);
  }
  TW_MEMBER static void load(From (&to)[kVector], const From* from) {
    *reinterpret_cast<u32x4*>(to) = *reinterpret_cast<const u32x4*>(from);
  }

  // Pixels from `pixel0` on of a frame of an image, channels from c0 on.
  TW_MEMBER void write_pixels(i64 frame, i64 pixel0, i32 c0, i64 plane, int thread) const {
    const i32 depth = shape.axes[0].in, z = static_cast<i32>(frame % depth), cached = shape.cache;
    const i64 image = frame / depth, own_depth = z < cached ? cached : depth - cached,
              own_z = z < cached ? z : z - cached;
    const From* const from = static_cast<const From*>(z < cached ? args.cache : args.x.data);
    const int pixels = static_cast<int>(min2(i64{kPixels}, plane - pixel0));
    const i32 channels = written_channels(shape.c, sizeof(To));
    To* const to = x + (frame * plane + pixel0) * channels + c0;
    if (shape.x_channels_first) {
      turn(from + ((image * shape.c + c0) * own_depth + own_z) * plane + pixel0, own_depth * plane, pixels,
           min2(kChannels, shape.c - c0), thread);
      sync_block();
      write_units(to, pixels, channels, c0, thread,
                  [&](int p, int c) { return collect(kUnit, [&](int i) { return turned[turned_at(c + i, p)]; }); });
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
  // unit(pixel, channel) to where it belongs; some are loaded before the first is written.
  template <class Read>
  TW_MEMBER static void write_units(To* to, int pixels, i32 channels, i32 c0, int thread, const Read& unit) {
    const int end = pixels * kUnits;
    TW_NO_UNROLL for (int first = thread; first < end; first += kAhead * THREADS) {
      Unit units[kAhead];
      const auto each = [&](const auto& visit) {
        TW_UNROLL for (int i = 0; i < kAhead; ++i) {
          const int at = first + i * THREADS, c = at % kUnits * kUnit;
          if (at < end && c0 + c < channels) visit(i, at / kUnits, c);
        }
      };
      each([&](int i, int p, int c) { units[i] = unit(p, c); });
      each([&](int i, int p, int c) { write(to + i64{p} * channels + c, units[i]); });
    }
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
