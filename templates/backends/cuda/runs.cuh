// SPDX-License-Identifier: Apache-2.0
// Moving runs of bytes and elements with 16-byte accesses. The data stream of a matrix has no padding, so that a matrix
// without row scales is one run of blocks, whatever its rows are.
#pragma once
#include "backends/cuda/ptx.cuh"

namespace tw::cast {

// Waits for what the kernel before this one writes, and lets the blocks of the one behind come: they are launched while
// this one ends.
TW_DEVICE void begin_in_turn() {
  wait_prerequisite_grids();
  launch_dependent_grids();
}

TW_DEVICE u32x4 read_shared16(const u8* p) { return *reinterpret_cast<const u32x4*>(p); }
TW_DEVICE void write_shared16(u8* p, u32x4 v) { *reinterpret_cast<u32x4*>(p) = v; }

// Registers to shared memory, `align` = 4 or 2 bytes at a time.
template <int words, int align>
TW_DEVICE void write_words(u8* p, const u32* w) {
  TW_UNROLL for (int i = 0; i < words; ++i) {
    if constexpr (align == 4) {
      *reinterpret_cast<u32*>(p + 4 * i) = w[i];
    } else {
      *reinterpret_cast<u16*>(p + 4 * i) = static_cast<u16>(w[i]);
      *reinterpret_cast<u16*>(p + 4 * i + 2) = static_cast<u16>(w[i] >> 16);
    }
  }
}

// The first `count` (at most `bytes`) of a tile, by a whole block of 16 threads or more. Both sides are 16-byte
// aligned.
template <int threads, int bytes>
TW_DEVICE void tile_to_shared(u8* shared, const u8* global, int count) {
  constexpr int kVectors = ceil_div(bytes, 16 * threads);
  const int thread = static_cast<int>(thread_x());
  u32x4 v[kVectors];
  TW_UNROLL for (int i = 0; i < kVectors; ++i) {
    const int at = 16 * (i * threads + thread);
    if (at + 16 <= count) v[i] = load_stream16(global + at);
  }
  TW_UNROLL for (int i = 0; i < kVectors; ++i) {
    const int at = 16 * (i * threads + thread);
    if (at + 16 <= count) write_shared16(shared + at, v[i]);
  }
  const int at = count / 16 * 16 + thread;
  if (at < count) shared[at] = load_global1(global + at);
}
template <int threads, int bytes>
TW_DEVICE void tile_to_global(u8* global, const u8* shared, int count) {
  const int thread = static_cast<int>(thread_x());
  TW_UNROLL for (int i = 0; i < ceil_div(bytes, 16 * threads); ++i) {
    const int at = 16 * (i * threads + thread);
    if (at + 16 <= count) store_global16(global + at, read_shared16(shared + at));
  }
  const int at = count / 16 * 16 + thread;
  if (at < count) global[at] = shared[at];
}

// E elements of T from a 16-byte aligned place; those from `count` on are 0.
template <class T, int E>
TW_DEVICE void load_elements(u32 (&words)[E * sizeof(T) / 4], const u8* p, i64 count) {
  static_assert(E * sizeof(T) % 16 == 0, "whole vectors");
  TW_UNROLL for (int i = 0; i < static_cast<int>(E * sizeof(T) / 4); ++i) words[i] = 0;
  if (count >= E) {
    TW_UNROLL for (int i = 0; i < static_cast<int>(E * sizeof(T) / 16); ++i) {
      const u32x4 v = load_global16(p + 16 * i);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  } else {
    TW_UNROLL for (int i = 0; i < E; ++i) {
      if (i >= count) continue;
      if constexpr (sizeof(T) == 4)
        words[i] = load_global4(p + 4 * i);
      else
        words[i / 2] |= static_cast<u32>(load_global2(p + 2 * i)) << (16 * (i % 2));
    }
  }
}
template <class T, int E>
TW_DEVICE void to_floats(float (&v)[E], const u32 (&words)[E * sizeof(T) / 4]) {
  TW_UNROLL for (int i = 0; i < E; ++i) {
    if constexpr (sizeof(T) == 4)
      v[i] = bits_as<float>(words[i]);
    else
      v[i] = i % 2 ? high_half<T>(words[i / 2]) : low_half<T>(words[i / 2]);
  }
}
template <class T, int E>
TW_DEVICE void from_floats(u32 (&words)[E * sizeof(T) / 4], const float (&v)[E]) {
  if constexpr (sizeof(T) == 4) {
    TW_UNROLL for (int i = 0; i < E; ++i) words[i] = bits_as<u32>(v[i]);
  } else {
    TW_UNROLL for (int i = 0; i < E / 2; ++i) words[i] = pack2<T>(v[2 * i], v[2 * i + 1]);
  }
}

// The tensor-wide scale of a format that has one, else 1.
template <class F>
TW_DEVICE float tensor_scale(const float* global) {
  if constexpr (F::kGlobal)
    return *global;
  else
    return 1.0f;
}

}  // namespace tw::cast
