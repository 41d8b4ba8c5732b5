// SPDX-License-Identifier: Apache-2.0
// w written to the workspace as boxes are read from there (prologue.cuh): for each output channel the taps, for each of
// these its channels, in whole pieces of 16 bytes. Scales of rows and of the tensor are left to the epilogue.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "formats/shared/format.cuh"
#include "operations/conv/params.cuh"
#include "operations/gemm/cuda/operands.cuh"

namespace tw::conv {

TW_CONSTANTS(int, kWidestUnit = 64);  // columns of w that a thread decodes together
// Shared memory that a block of so many threads needs.
TW_FN constexpr int weights_room(int threads, int element_bytes) { return threads * kWidestUnit * element_bytes; }

// One thread's, before the previous kernel has ended: the block's share of w's codes comes into L2.
template <class W>
TW_DEVICE void prefetch_weights(const Args& args, const Shape& shape) {
  const i64 all = shape.k * gemm::data_stride<W>(shape.columns()) / 16, share = ceil_div64(all, grid_x()),
            first = share * block_x(), count = min2(share, all - first);
  if (count > 0) bulk_prefetch(static_cast<const u8*>(args.w.data) + first * 16, static_cast<u32>(count * 16));
}

// W: w's format; To: the elements that are written. CHANNELS: of shape. channels_first: whether w has them so. unfolds:
// shape is the problem's unfolded one, whose channels are w's columns, channels first.
template <class W, class To, int CHANNELS, bool channels_first, bool unfolds, int THREADS>
struct WrittenWeights {
  TW_CONSTANTS(int, kChunk = 16 / static_cast<int>(sizeof(To)));  // elements that are written at a time
  // Columns of a unit of W in a thread's registers, whole chunks, where elements are written in the order in which w
  // has them, one for one; else 0. (Those that are To's are written because they are in another order.)
  TW_MEMBER static constexpr int unit_columns() {
    if (CHANNELS % kChunk != 0 || channels_first || unfolds || same<typename W::Element, To>()) return 0;
    const int widths[] = {kWidestUnit / 2, kWidestUnit / 4, kWidestUnit / 8, kWidestUnit};  // the best first
    for (const int e : widths)
      if (e >= kChunk && W::unit_ok(e) && (CHANNELS % e == 0 || W::kBlock % e == 0)) return e;
    return 0;
  }
  TW_CONSTANTS(int, kUnit = unit_columns(), kOfUnit = max2(1, kUnit / kChunk));  // chunks
  // A piece is a unit, or a chunk, of each thread, or several, but no more than give every block a piece.
  TW_CONSTANTS(int, kMost = kUnit ? min2(4, 128 / max2(1, kUnit)) : 8, kStep = THREADS * kOfUnit);

  const Args& args;
  const Shape &source, &shape;  // the problem's, and as it is written
  To* to;
  u32x4* shared;

  TW_MEMBER i64 chunks() const { return shape.k * shape.taps() * (written_channels(shape.c, sizeof(To)) / kChunk); }
  TW_MEMBER int piece_chunks() const {
    return kStep * static_cast<int>(min2(i64{kMost}, max2(i64{1}, ceil_div64(chunks(), i64{kStep} * grid_x()))));
  }
  TW_MEMBER u32 pieces() const { return static_cast<u32>(ceil_div64(chunks(), piece_chunks())); }
  TW_MEMBER void write(u32 piece, int thread) const {
    const i64 first = i64{piece} * piece_chunks();
    const int count = static_cast<int>(min2(i64{piece_chunks()}, chunks() - first));
    if constexpr (kUnit > 0)
      write_units(first, count, thread);
    else
      write_channels(first, count, thread);
  }

 private:
  TW_MEMBER static void store(u32x4* chunk, const float (&v)[kChunk]) {
    fmt::Plain<To, 8 * static_cast<int>(sizeof(To))>::template encode_lanes<kChunk>(v, 0, reinterpret_cast<u8*>(chunk),
                                                                                    nullptr, 1.0f, 0);
  }

  // Units of the format, which come from a thread's registers, pass through shared memory, so that neighbouring threads
  // write neighbouring chunks. There a chunk's place is XORed, for neither side to meet in a bank.
  TW_MEMBER static int place(int chunk) { return chunk ^ (chunk / 8 % 8); }
  TW_MEMBER void write_units(i64 first, int count, int thread) const {
    typename W::template Unit<kUnit> units[kMost];
    TW_UNROLL for (int i = 0; i < kMost; ++i) {
      const int at = i * kStep + thread * kOfUnit;
      if (at < count)
        W::template load<kUnit>(units[i], static_cast<const u8*>(args.w.data), static_cast<const u8*>(args.w.scales),
                                (first + at) * kChunk);
    }
    u32x4* const chunks = reinterpret_cast<u32x4*>(to) + first;
    TW_UNROLL for (int i = 0; i < kMost; ++i) {
      if (i * kStep >= count) break;
      if (i > 0) sync_block();
      const int left = min2(kStep, count - i * kStep);
      if (thread * kOfUnit < left) {
        float v[kUnit];
        values(units[i], v);
        TW_UNROLL for (int c = 0; c < kOfUnit; ++c) {
          float of_chunk[kChunk];
          TW_UNROLL for (int e = 0; e < kChunk; ++e) of_chunk[e] = v[c * kChunk + e];
          store(shared + place(thread * kOfUnit + c), of_chunk);
        }
      }
      sync_block();
      for (int at = thread; at < left; at += THREADS) chunks[i * kStep + at] = shared[place(at)];
    }
  }
  template <class Unit, int columns>
  TW_MEMBER static void values(const Unit& unit, float (&v)[columns]) {
    if constexpr (W::kCodes) {
      constexpr int kGroup = W::kGroup;
      TW_UNROLL for (int g = 0; g < columns / kGroup; ++g) {
        u32 codes[kGroup / 4];
        float scale, offset;
        W::template group<columns>(unit, g, codes, scale, offset);
        TW_UNROLL for (int i = 0; i < kGroup; ++i) v[g * kGroup + i] = scale * fmt::code_at(codes, i) - offset;
      }
    } else {
      W::template values<columns>(unit, 0, v);
    }
  }

  // Any order and number of channels, element by element.
  TW_MEMBER void write_channels(i64 first, int count, int thread) const {
    // There are fewer than 2^32 chunks.
    const u32 taps = static_cast<u32>(shape.taps()), step = channels_first ? taps : 1,
              of_tap = static_cast<u32>(written_channels(shape.c, sizeof(To)) / kChunk);
    u32x4* const chunks = reinterpret_cast<u32x4*>(to) + first;
    TW_NO_UNROLL for (int i = thread; i < count; i += THREADS) {
      const u32 chunk = static_cast<u32>(first) + static_cast<u32>(i), at = chunk / of_tap, row = at / taps,
                tap = at % taps;
      const i32 c = static_cast<i32>(chunk % of_tap) * kChunk;
      const i64 first_of_row = row * shape.columns(),
                from = first_of_row + (channels_first ? i64{c} * taps + tap : i64{tap} * shape.c + c);
      alignas(16) To values[kChunk];
      TW_UNROLL for (int e = 0; e < kChunk; ++e) {
        const i64 place = unfolds ? first_of_row + unfolded_column(c + e) : from + e * step;
        values[e] = c + e < shape.c ? element(place) : To{};
      }
      chunks[i] = *reinterpret_cast<const u32x4*>(values);
    }
  }
  // The column of w, as it is stored, that column i of channels first is.
  TW_MEMBER i64 unfolded_column(i32 i) const {
    const i32 taps = static_cast<i32>(source.taps());
    return channels_first ? i : i64{i % taps} * source.c + i / taps;
  }
  TW_MEMBER To element(i64 at) const {
    if constexpr (same<typename W::Element, To>()) {
      return static_cast<const To*>(args.w.data)[at];
    } else {
      const i64 block = at / W::kBlock;
      return from_f32<To>(W::decode(static_cast<const u8*>(args.w.data) + block * W::kDataBytes,
                                    static_cast<const u8*>(args.w.scales) + block * W::kScaleBytes, 1.0f,
                                    static_cast<int>(at % W::kBlock)));
    }
  }
};

}  // namespace tw::conv
