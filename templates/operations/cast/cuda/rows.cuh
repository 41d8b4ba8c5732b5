// SPDX-License-Identifier: Apache-2.0
// Plain floats to a format of codes of eight or four bits with a scale per row. `row_threads` threads (whole warps)
// share a row: they read it once, keep the first `held` iterations of it in registers, agree on its largest magnitude
// (or its extremes, where there is a zero point, and in the end the sum of its codes), and encode; what did not fit
// (nothing, if `whole`) is read again, from L2 as a rule. Elements are counted from the start of the matrix, where both
// matrices are aligned, so that rows of any length are read and written in 16-byte pieces except at their ends.
//
// The vectors that a warp reads together are neighbours; lanes then exchange codes, each in a byte, so that each has
// sixteen neighbouring ones, packs them, and stores them at once.
#pragma once
#include "backends/cuda/runs.cuh"
#include "formats/shared/row_scale.cuh"
#include "operations/cast/cuda/row_group.cuh"
#include "operations/cast/params.cuh"
#include "operations/cast/stochastic.cuh"

namespace tw::cast {

template <class X, class Y, int row_threads, int block_rows, int held, bool whole, bool aligned,
          bool stochastic = false>
struct Rows {
  using T = typename X::Element;
  TW_CONSTANTS(int, kThreads = row_threads * block_rows);
  using Group = RowGroup<row_threads, block_rows>;
  TW_CONSTANTS(bool, kZeroPoint = fmt::has_zero_point<Y>());
  TW_CONSTANTS(int, kWords = kZeroPoint ? 3 : 1);  // that warps exchange: extremes, the sum of codes
  TW_CONSTANTS(int, kSharedBytes = Group::shared_bytes(kWords));
  using Extent = fmt::Extent<Y>;
  using Item = fmt::row_item<Y>;
  TW_CONSTANTS(int, kVector = 16 / sizeof(T));  // elements of one load
  TW_CONSTANTS(int, kLoads = 16 / kVector);     // loads of one iteration
  TW_CONSTANTS(int, kStep = row_threads * 16);  // elements of one iteration
  TW_CONSTANTS(int, kPerByte = Y::kBlock);      // codes
  static_assert(Y::kRowScale && Y::kDataBytes == 1 && !fmt::OfMean<Y>::value, "codes that a thread can make");

  // A thread's view of a row. Elements are numbered from the last multiple of 16 at or before the row's start; the
  // row's are low <= at < high. `aligned`: low is 0 and high a multiple of 16. Rows are short enough for 32 bits.
  struct Span {
    const T* x;       // of the thread's first load
    u8* y;            // of its first store
    u32 load, store;  // the numbers of both
    i64 base;         // of element 0 in the matrix
    u64 seed;
    u32 low, high;
    TW_MEMBER Span(const Args& args, i64 index, i64 cols, int thread) {
      const int warp = thread / 32, lane = thread % 32;
      const i64 first = index < args.rows ? index * cols : 0;
      base = first / 16 * 16;
      seed = args.seed;
      load = static_cast<u32>(warp * 512 + kVector * lane);
      store = static_cast<u32>(warp * 512 + 32 * kVector * (lane % kLoads) + 16 * (lane / kLoads));
      x = static_cast<const T*>(args.x.data) + base + load;
      y = static_cast<u8*>(args.y.data) + (base + store) / kPerByte;
      low = static_cast<u32>(first - base);
      high = index < args.rows ? low + static_cast<u32>(cols) : 0;
    }
  };

  TW_MEMBER static void load(u32 (&words)[4], const Span& row, int offset) {
    const u32 at = row.load + static_cast<u32>(offset);
    const T* x = row.x + offset;
    TW_UNROLL for (int i = 0; i < 4; ++i) words[i] = 0;
    if ((aligned || at >= row.low) && at + kVector <= row.high) {
      const u32x4 v = load_global16(x);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if constexpr (!aligned) {
      TW_UNROLL for (int i = 0; i < kVector; ++i) {
        if (at + i < row.low || at + i >= row.high) continue;
        if constexpr (sizeof(T) == 4)
          words[i] = load_global4(x + i);
        else
          words[i / 2] |= static_cast<u32>(load_global2(x + i)) << (16 * (i % 2));
      }
    }
  }
  TW_MEMBER static void load_step(u32 (&words)[kLoads][4], const Span& row, int i) {
    TW_UNROLL for (int j = 0; j < kLoads; ++j) load(words[j], row, i * kStep + j * 32 * kVector);
  }
  TW_MEMBER static void add(Extent& extent, const u32 (&words)[kLoads][4]) {
    TW_UNROLL for (int j = 0; j < kLoads; ++j) {
      float v[kVector];
      to_floats<T, kVector>(v, words[j]);
      TW_UNROLL for (int i = 0; i < kVector; ++i) extent.add(v[i]);
    }
  }
  // Lanes of a group of kLoads exchange code words: word k of lane t becomes the word of lane k for vector t.
  TW_MEMBER static u32x4 exchange(const u32 (&codes)[4], int lane) {
    const bool odd = lane % 2, upper = lane % 4 >= 2;
    if constexpr (kLoads == 2) {  // codes: two words of vector 0, two of vector 1
      const u32 a = shuffle_xor(odd ? codes[0] : codes[2], 1), b = shuffle_xor(odd ? codes[1] : codes[3], 1);
      return odd ? u32x4{a, b, codes[2], codes[3]} : u32x4{codes[0], codes[1], a, b};
    } else {  // one word of each of four vectors: a 4 x 4 transpose
      const u32 a = shuffle_xor(odd ? codes[0] : codes[1], 1), b = shuffle_xor(odd ? codes[2] : codes[3], 1);
      const u32 w0 = odd ? a : codes[0], w1 = odd ? codes[1] : a, w2 = odd ? b : codes[2], w3 = odd ? codes[3] : b;
      const u32 c = shuffle_xor(upper ? w0 : w2, 2), d = shuffle_xor(upper ? w1 : w3, 2);
      return upper ? u32x4{c, d, w2, w3} : u32x4{w0, w1, c, d};
    }
  }
  static_assert(kPerByte <= 2);
  // Two words of codes of four bits, each in a byte, as one.
  TW_MEMBER static u32 nibbles(u32 a, u32 b) { return prmt(a | a >> 4, b | b >> 4, 0x6420u); }
  TW_MEMBER static void store(const Span& row, int offset, u32x4 codes) {
    const u32 at = row.store + static_cast<u32>(offset);
    u8* y = row.y + offset / kPerByte;
    u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
    if constexpr (kPerByte == 2) words[0] = nibbles(codes.x, codes.y), words[1] = nibbles(codes.z, codes.w);
    if ((aligned || at >= row.low) && at + 16 <= row.high) {
      if constexpr (kPerByte == 1)
        store_global16(y, codes);
      else
        *reinterpret_cast<u32x2*>(y) = {words[0], words[1]};
    } else if constexpr (!aligned) {
      TW_UNROLL for (int i = 0; i < 16 / kPerByte; ++i) {
        const u32 first = at + static_cast<u32>(i * kPerByte);
        if (first >= row.low && first < row.high) y[i] = static_cast<u8>(words[i / 4] >> (8 * (i % 4)));
      }
    }
  }
  // Codes of elements `at` to `at` + 3 of the matrix.
  TW_MEMBER static u32 rounded(u32 codes, const float (&v)[4], i64 at, const Span& row, const Item& item) {
    u32 random[4];
    random_words(random, at / 4, row.seed);
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      u8 code = static_cast<u8>(codes >> (8 * i));
      fmt::round_stochastically<Y>(&code, nullptr, item, 0, v[i], random[i], 0);
      codes = (codes & ~(255u << (8 * i))) | static_cast<u32>(code) << (8 * i);
    }
    return codes;
  }
  template <bool direct>
  TW_MEMBER static void encode_step(const u32 (&words)[kLoads][4], const Divider& scale, const Span& row, int i,
                                    int thread, Item& item) {
    u32 codes[4];
    TW_UNROLL for (int j = 0; j < kLoads; ++j) {
      float v[kVector];
      to_floats<T, kVector>(v, words[j]);
      TW_UNROLL for (int k = 0; k < kVector; k += 4) {
        const float four[4] = {v[k], v[k + 1], v[k + 2], v[k + 3]};
        u32 word = fmt::row_codes<Y, direct>(four, scale, item);
        if constexpr (stochastic)
          word = rounded(word, four, row.base + row.load + i * kStep + j * 32 * kVector + k, row, item);
        if constexpr (kZeroPoint) item.sum = dp4a(word, 0x01010101u, item.sum);
        codes[(kVector * j + k) / 4] = word;
      }
    }
    store(row, i * kStep, exchange(codes, thread % 32));
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const int in_block = static_cast<int>(thread_x()) / row_threads,
              thread = static_cast<int>(thread_x()) % row_threads;
    const i64 index = static_cast<i64>(block_x()) * block_rows + in_block;
    const Span row(args, index, shape.cols,
                   thread);  // empty beyond the last row: its threads still meet at the barrier
    const int steps = static_cast<int>((row.high + (kStep - 1)) / kStep);

    begin_in_turn();
    u32 kept[held][kLoads][4], more[kLoads][4];
    TW_UNROLL for (int i = 0; i < held; ++i) load_step(kept[i], row, i);
    Extent extent;
    TW_UNROLL for (int i = 0; i < held; ++i) add(extent, kept[i]);
    TW_NO_UNROLL for (int i = held; !whole && i < steps; ++i) {
      load_step(more, row, i);
      add(extent, more);
    }
    Group::join(extent, 0, in_block, thread);
    Item item = extent.item();

    const Divider by(fmt::scale_of(item), extent.largest());
    if (by.direct) {
      TW_UNROLL for (int i = 0; i < held; ++i) if (i < steps) encode_step<true>(kept[i], by, row, i, thread, item);
      TW_NO_UNROLL for (int i = held; !whole && i < steps; ++i) {
        load_step(more, row, i);
        encode_step<true>(more, by, row, i, thread, item);
      }
    } else {  // rare: once in the text, and from memory
      TW_NO_UNROLL for (int i = 0; i < steps; ++i) {
        load_step(more, row, i);
        encode_step<false>(more, by, row, i, thread, item);
      }
    }
    if constexpr (kZeroPoint)  // beyond the row's ends there were zeros
      item.sum = Group::sum(item.sum, Extent::kFloats, in_block, thread) -
                 item.zero * (steps * kStep - static_cast<int>(shape.cols));
    if (row.high > 0 && thread == 0) static_cast<Item*>(args.y.scales)[index] = item;
  }
};

}  // namespace tw::cast
