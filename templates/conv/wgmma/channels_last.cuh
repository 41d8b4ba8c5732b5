// SPDX-License-Identifier: Apache-2.0
// x and w written to the workspace as boxes are read from there: channels innermost, in whole pieces of 16 bytes, in
// the elements that the matrix units take; what a cache has, in front of x. For layouts with channels first, numbers of
// channels that are no whole pieces, and single precision that is rounded to bfloat16. All blocks share the work before
// any of them multiplies (gemm/wgmma/prologue.cuh).
//
// Workspace: the words of gemm/wgmma/schedule.cuh, w, x.
#pragma once
#include "conv/params.cuh"
#include "core/numeric.cuh"
#include "gemm/wgmma/prologue.cuh"

namespace tw::conv {

// Bytes of w as it is written, and where x begins behind the workspace's first byte.
TW_FN constexpr i64 written_filter_bytes(i64 k, i64 taps, i32 channels, int element_bytes) {
  return (k * taps * written_channels(channels, element_bytes) * element_bytes + 127) / 128 * 128;
}
TW_FN constexpr i64 written_x_at(i64 filter_bytes) { return gemm::kScheduleBytes + filter_bytes; }

// From: elements of x and w as a launch passes them; To: as they are written.
template <class From, class To, int THREADS>
struct ChannelsLast {
  TW_CONSTANTS(int, kUnit = 16 / static_cast<int>(sizeof(To)));  // channels that a thread writes at a time
  // A piece: pixels of a frame by channels, turned in shared memory where channels come first.
  TW_CONSTANTS(int, kPixels = 64, kChannels = 64, kPitch = kPixels + 1);
  struct Memory {
    u32 piece;
    From turned[kChannels * kPitch];
  };

  const Args& args;
  const Shape& shape;

  TW_MEMBER void run(u8* memory, int thread) const {
    Memory& shared = *reinterpret_cast<Memory*>(memory);
    u8* const workspace = static_cast<u8*>(args.workspace);
    const i64 plane = i64{shape.axes[1].in} * shape.axes[2].in, runs = ceil_div64(plane, kPixels),
              blocks = ceil_div(shape.c, kChannels);
    const i64 frames = shape.n * shape.axes[0].in, pieces = frames * runs * blocks;
    To* const w = reinterpret_cast<To*>(workspace + gemm::kScheduleBytes);
    To* const x = reinterpret_cast<To*>(workspace +
                                        written_x_at(written_filter_bytes(shape.k, shape.taps(), shape.c, sizeof(To))));
    gemm::share_pieces(workspace, static_cast<u32>(pieces + shape.k), grid_x(), shared.piece, thread, [&](u32 piece) {
      if (piece < static_cast<u32>(shape.k)) {
        write_filter(w, piece, thread);
      } else {
        const i64 at = piece - static_cast<u32>(shape.k), frame = at / blocks / runs;
        write_pixels(shared, x, frame, at / blocks % runs * kPixels, static_cast<i32>(at % blocks) * kChannels, plane,
                     thread);
      }
    });
    fence_async();  // the ring is filled where this lay
    sync_block();
  }

 private:
  TW_MEMBER static To converted(From v) {
    if constexpr (same<From, To>())
      return v;
    else
      return from_f32<To>(to_f32(v));
  }
  // Channels first .. of a pixel or a tap: value(i) of those that exist, else zero.
  template <class Value>
  TW_MEMBER static void write_unit(To* to, i32 exist, const Value& value) {
    To unit[kUnit];
    TW_UNROLL for (int i = 0; i < kUnit; ++i) unit[i] = i < exist ? converted(value(i)) : To{};
    *reinterpret_cast<u32x4*>(to) = *reinterpret_cast<const u32x4*>(unit);
  }

  TW_MEMBER void write_filter(To* w, i64 row, int thread) const {
    const i32 taps = static_cast<i32>(shape.taps()), channels = written_channels(shape.c, sizeof(To)),
              units = channels / kUnit;
    const From* const from = static_cast<const From*>(args.w.data) + row * shape.columns();
    To* const to = w + row * taps * channels;
    for (i32 at = thread; at < taps * units; at += THREADS) {
      const i32 tap = at / units, c = at % units * kUnit;
      write_unit(to + i64{at} * kUnit, shape.c - c, [&](int i) {
        return shape.w_channels_first ? from[i64{c + i} * taps + tap] : from[i64{tap} * shape.c + c + i];
      });
    }
  }

  // Pixels from `pixel0` on of a frame of an image, channels from c0 on.
  TW_MEMBER void write_pixels(Memory& shared, To* x, i64 frame, i64 pixel0, i32 c0, i64 plane, int thread) const {
    const i32 depth = shape.axes[0].in, z = static_cast<i32>(frame % depth), cached = shape.cache;
    const i64 image = frame / depth, own_depth = z < cached ? cached : depth - cached,
              own_z = z < cached ? z : z - cached;
    const From* const from = static_cast<const From*>(z < cached ? args.cache : args.x.data);
    const int pixels = static_cast<int>(min2(i64{kPixels}, plane - pixel0));
    const i32 channels = written_channels(shape.c, sizeof(To)), width = min2(kChannels, channels - c0),
              units = width / kUnit;
    To* const to = x + (frame * plane + pixel0) * channels + c0;
    if (shape.x_channels_first) {
      for (int at = thread; at < kChannels * kPixels; at += THREADS) {
        const int c = at / kPixels, p = at % kPixels;
        if (p < pixels && c0 + c < shape.c)
          shared.turned[c * kPitch + p] = from[((image * shape.c + c0 + c) * own_depth + own_z) * plane + pixel0 + p];
      }
      sync_block();
    }
    const From* const rows = from + ((image * own_depth + own_z) * plane + pixel0) * shape.c + c0;
    for (int at = thread; at < pixels * units; at += THREADS) {
      const int p = at / units, c = at % units * kUnit;
      write_unit(to + i64{p} * channels + c, shape.c - c0 - c, [&](int i) {
        return shape.x_channels_first ? shared.turned[(c + i) * kPitch + p] : rows[i64{p} * shape.c + c + i];
      });
    }
  }
};

}  // namespace tw::conv
